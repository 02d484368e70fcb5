"""How does a worker have a candidate verified and timed without ever running it itself?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem
from service.store.records import Failed, Measured, RaceOutcome


@dataclass(frozen=True)
class RaceEntrant:
    """One runner of a race. The Baseline has role `baseline` and no artifact."""

    name: str
    role: str
    trial_id: str | None = None
    plan: LaunchPlan | None = None
    so_path: Path | None = None
    pool_path: Path | None = None


class MeasureSession:
    """One measuring process (and its candidates, one process each). Use as a context manager.

    `roof` is what roof.measure_roof() gave (None: times are judged only by being positive and finite);
    `guard_path` the artifact of x86/faultguard.c (None: a fault is known by its signal only).
    """

    def __init__(
        self,
        device_key: str,
        *,
        threads: int | None = None,
        roof: Mapping[str, Any] | None = None,
        guard_path: Path | None = None,
        tool_path: Path | None = None,
    ) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def trial(
        self,
        problem: Problem,
        plan: LaunchPlan,
        so_path: Path,
        pool_path: Path,
        policy: Mapping[str, Any],
        seed: int,
        best_us: float | None = None,
        *,
        limit_s: float | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Measured | Failed:
        """Verify, time, verify again. Raises TrialCancelled within a second of `cancelled()`."""
        raise NotImplementedError

    def race(
        self,
        problem: Problem,
        entrants: Sequence[RaceEntrant],
        policy: Mapping[str, Any],
        seed: int,
        rounds: int | None = None,
        *,
        cancelled: Callable[[], bool] | None = None,
    ) -> RaceOutcome:
        """All entrants in turns, one process each, in shuffled order, until the noise is small.

        Each result's `measurement.environment["round_medians_us"]` has one median for each round (null where
        the entrant had failed by then), in the same order for all, so that ratios can be taken round by round.
        `noise` is {"pair": [name, twin's name], "ratios": [twin / name of each round], "median_ratio": x,
        "q10": x, "q90": x, "relative": r, "rounds": n}: differences below `relative` (of the time) are none.
        Without a twin that ran, "pair" is null and "relative" is a cautious default.
        """
        raise NotImplementedError
