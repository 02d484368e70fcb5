"""How is Optuna's TPE sampler asked, when our own rows are the only record?

The only module that imports Optuna. The study lives in memory, is fed the finished rows in the order in
which they finished, and can be thrown away at any time: what it answers depends on the rows and the seed
alone. Asked points may be illegal or known, so the caller moves each to a point it will really try and
says so (`note`); the asked one is told as failed, which TPE ignores.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from service.search.coding import Codes, Coding

optuna.logging.set_verbosity(optuna.logging.ERROR)

# An ask costs 10 to 40 ms at 300 rows of 16 parameters and grows with them; 2,000 rows cost 80 ms.
ROWS_MOST = 200
RECENT_KEPT = 100
BEST_KEPT = 50
# Feeding one row costs about 0.4 ms, so the study is kept and fed only what is new, until it has
# gathered this many dead entries (asked points and in-flight markers of earlier rounds).
DEAD_MOST = 1000
STARTUP_ROWS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """A finished point: log of its time, or None when it failed."""

    codes: Codes
    log_time: float | None


class Round:
    """One batch of asks; every point noted here repels the next ones (constant liar)."""

    def __init__(self, study: optuna.Study, distributions: dict[str, BaseDistribution]) -> None:
        self._study = study
        self._distributions = distributions
        self._open: list[int] = []

    def ask(self) -> Codes:
        trial = self._study.ask(self._distributions)
        codes = tuple(int(trial.params[name]) for name in self._distributions)
        self._study.tell(trial, state=TrialState.FAIL)
        return codes

    def note(self, codes: Codes) -> None:
        """This point is being tried."""
        self._open.append(len(self._study.get_trials(deepcopy=False)))
        self._study.add_trial(_trial(self._distributions, codes, TrialState.RUNNING, None))

    def close(self) -> int:
        for number in self._open:
            self._study.tell(number, state=TrialState.FAIL)
        return len(self._open)


class _Sampler(optuna.samplers.TPESampler):
    """TPE over a space that is known, so that it need not be found again from all rows (20 ms at 300)."""

    def __init__(self, seed: int, space: dict[str, BaseDistribution]) -> None:
        super().__init__(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=STARTUP_ROWS)
        self._known_space = space

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._known_space


class _Whole(IntDistribution):
    """Not copied with each trial (Optuna copies all that it is given): it never changes."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Whole:
        return self


class _Label(CategoricalDistribution):
    """As _Whole."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Label:
        return self


class Tpe:
    """A study over one coding."""

    def __init__(self, coding: Coding) -> None:
        self.coding = coding
        self._distributions: dict[str, BaseDistribution] = {
            axis.name: _Whole(0, len(axis.choices) - 1)
            if axis.ordered
            else _Label(tuple(range(len(axis.choices))))
            for axis in coding.axes
        }
        self._study: optuna.Study | None = None
        self._fed: list[Row] = []

    @contextmanager
    def round(self, done: Sequence[Row], in_flight: Sequence[Codes], seed: int) -> Iterator[Round | None]:
        """Ask some points. None while there are too few times to learn from, or nothing that varies."""
        rows = teachable(done)
        if not self.coding.axes or len(rows) < STARTUP_ROWS:
            yield None
            return
        study = self._fed_study(rows)
        # A sampler carries random state; a fresh one per round makes the answer depend on the rows only.
        study.sampler = _Sampler(seed % 2**32, self._distributions)
        current = Round(study, self._distributions)
        try:
            for codes in in_flight:
                current.note(codes)
            yield current
        finally:
            current.close()

    def _fed_study(self, rows: list[Row]) -> optuna.Study:
        study = self._study
        known = len(self._fed)
        entries = 0 if study is None else len(study.get_trials(deepcopy=False))
        if study is None or self._fed != rows[:known] or entries - known > DEAD_MOST:
            # The sampler is replaced before each round; this one only keeps the constructor quiet.
            study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
            self._study, known = study, 0
        study.add_trials([self._finished(row) for row in rows[known:]])
        self._fed = list(rows)
        return study

    def _finished(self, row: Row) -> FrozenTrial:
        if row.log_time is None:
            return _trial(self._distributions, row.codes, TrialState.PRUNED, None)
        return _trial(self._distributions, row.codes, TrialState.COMPLETE, row.log_time)


def _trial(
    distributions: dict[str, BaseDistribution], codes: Codes, state: TrialState, value: float | None
) -> FrozenTrial:
    params = dict(zip(distributions, codes, strict=True))
    return create_trial(state=state, value=value, params=params, distributions=distributions)


def teachable(done: Sequence[Row]) -> list[Row]:
    """The rows TPE learns from: bounded in number, finite, and with at least one good one in ten.

    TPE calls the best tenth good. Where failures outnumber times by more than nine to one, some
    failures would be called good too, so the oldest of them are left out. Failures are told as PRUNED,
    never as infinity.
    """
    rows = [row for row in done if row.log_time is None or math.isfinite(row.log_time)]
    if len(rows) > ROWS_MOST:
        # In steps of 100, so that most rounds only add rows at the end of what the study knows.
        cut = (len(rows) - RECENT_KEPT) // 100 * 100
        timed = sorted((row.log_time, i) for i, row in enumerate(rows[:cut]) if row.log_time is not None)
        rows = [rows[i] for i in sorted(i for _, i in timed[:BEST_KEPT])] + rows[cut:]
    times = sum(row.log_time is not None for row in rows)
    excess = (len(rows) - times) - 9 * times
    if times == 0:
        return []
    if excess > 0:
        kept = []
        for row in rows:
            if row.log_time is None and excess > 0:
                excess -= 1
                continue
            kept.append(row)
        rows = kept
    return rows


def seed_of(*parts: object) -> int:
    """A stable number from anything with a stable text."""
    return random.Random("\x1f".join(str(part) for part in parts)).getrandbits(63)
