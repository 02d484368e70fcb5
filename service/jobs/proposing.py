"""What does `advance` tell a proposer, and what does it get back?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rooftile.problem import Problem

from search_space.device import Device
from search_space.schedule import Schedule, Value
from service.store.enums import ProposalSource

Limits = Mapping[str, tuple[Value, ...]]
"""Parameter name -> the values a job allows for it (one value fixes the parameter)."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A schedule that was proposed before: its time, or None when it failed or is not known yet."""

    schedule: Schedule
    key: str
    time_us: float | None = None


@dataclass(frozen=True)
class Ask:
    """Everything a proposal may depend on: the same Ask gives the same proposals."""

    name: str
    """Of the search (its job problem's id), so that a proposer can keep what it learned."""
    problem: Problem
    device: Device
    families: tuple[str, ...]
    seed: int
    trials: int
    """The budget of this search; decides when it turns from exploring to refining."""
    n: int
    """How many schedules are wanted."""
    limits: Limits = field(default_factory=dict)
    done: tuple[Tried, ...] = ()
    """Finished trials in the order in which they finished: a time, or None for a failure."""
    in_flight: tuple[Tried, ...] = ()
    """Proposed and not finished."""
    skip: frozenset[str] = frozenset()
    """Keys of schedules that are not to be proposed and teach nothing (cancelled, quarantined)."""
    transfer: tuple[Schedule, ...] = ()
    """Winners of near problems on the same device, nearest first."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One schedule to try."""

    schedule: Schedule
    source: ProposalSource
    predicted_us: float | None = None


class Proposer(Protocol):
    """Whoever can name the next schedules to try."""

    def propose(self, ask: Ask) -> list[Proposal]:
        """Up to `ask.n` legal schedules, all different, none of them in `done`, `in_flight` or `skip`.

        Fewer than asked for means that the space is exhausted. Raises NoLegalSchedule where the limits
        leave nothing at all.
        """
        ...
