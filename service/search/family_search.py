"""What is kept about one family of one search: its ground, its codes, its sampler and its surrogate?

All of it follows from the question alone and only saves time: a new process makes it again.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from search_space.schedule import Schedule, Value
from service.jobs.proposing import Tried
from service.search.coding import Codes, Coding
from service.search.ground import Ground
from service.search.land import Land
from service.search.start import far_apart
from service.search.surrogate import Metric, Point, Surrogate, Weights, fit
from service.search.tpe import Row, Tpe, seed_of

# The surrogate's weights are fitted anew with every so many rows, to the rows up to there: so they do not
# depend on when they were asked for. Many rows change them little.
REFIT_EVERY = 8
REFIT_LATER, LATER = 32, 64
SURROGATE_ROWS = 160
TIMED_LEAST = 8
POINTS_KEPT = 20_000
# Streams of neighbours; a batch looks around three schedules, which seldom change.
STREAMS_KEPT = 12
# Of schedules drawn by chance a batch looks at some of so many; drawn anew after so many trials.
DRAWN, DRAWN_FOR = 256, 128
DRAWN_STRIDE = 2


class _Stream:
    """What an iterator gives, drawn once, as far as somebody looked."""

    def __init__(self, source: Iterator[Schedule]) -> None:
        self._drawn: list[Schedule] = []
        self._source = source

    def __iter__(self) -> Iterator[Schedule]:
        for index in itertools.count():
            if index == len(self._drawn):
                fresh = next(self._source, None)
                if fresh is None:
                    return
                self._drawn.append(fresh)
            yield self._drawn[index]


@dataclass
class FamilySearch:
    """One family of one search."""

    land: Land
    seed: int
    coding: Coding = field(init=False)
    tpe: Tpe = field(init=False)
    metric: Metric = field(init=False)
    _model: _Stream | None = field(default=None, init=False)
    _encoded: dict[str, Codes | None] = field(default_factory=dict, init=False)
    _rows: dict[tuple[str, float | None], Row] = field(default_factory=dict, init=False)
    _points: dict[Schedule, Point] = field(default_factory=dict, init=False)
    _streams: OrderedDict[str, _Stream] = field(default_factory=OrderedDict, init=False)
    _drawn: tuple[int, list[Schedule]] | None = field(default=None, init=False)
    _weights: tuple[int, Weights] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._code(Coding.of(self.ground.choices, []))

    @property
    def name(self) -> str:
        return self.ground.family.name

    @property
    def ground(self) -> Ground:
        return self.land.ground

    def ranked(self) -> Iterable[Schedule]:
        """The best by the cost model, no two close together; it judges when somebody looks."""
        if self._model is None:
            self._model = _Stream(self._by_model())
        return self._model

    def _by_model(self) -> Iterator[Schedule]:
        live = Coding.of(self.ground.choices, [])
        yield from far_apart(self.land.ranked(), live, random.Random(self.seed))

    def rest(self) -> None:
        """Let go of what takes megabytes."""
        self.tpe = Tpe(self.coding)
        self._encoded.clear()
        self._rows.clear()
        self._points.clear()
        self._streams.clear()
        self._drawn = None

    # ------------------------------------------------------------ candidates

    def near(self, base: Schedule) -> Iterable[Schedule]:
        """Legal schedules around one, from near to far, always in the same order: drawn as far as somebody
        looked, and kept. An old row may hold choices that are gone; the nearest of today's are as good."""
        stream = self._streams.pop(base.key, None)
        if stream is None:
            values = self.ground.nearest(base.values())
            stream = _Stream(self.ground.around(values, random.Random(seed_of(self.seed, base.key))))
        self._streams[base.key] = stream
        if len(self._streams) > STREAMS_KEPT:
            self._streams.popitem(last=False)
        return stream

    def drawn(self, before: int) -> list[Schedule]:
        """Legal schedules from all over the space, for a search with so many trials behind it."""
        turn = before // DRAWN_FOR
        if self._drawn is None or self._drawn[0] != turn:
            rng = random.Random(seed_of(self.seed, "drawn", turn))
            found = itertools.islice(self.ground.some(rng, DRAWN_STRIDE), DRAWN)
            self._drawn = (turn, list(dict.fromkeys(found)))
        return self._drawn[1]

    # ------------------------------------------------------------ codes

    def encode(self, rows: Sequence[Tried]) -> None:
        """Codes of rows not seen yet; a value that no choice has any more widens the coding."""
        fresh = [row for row in rows if row.key not in self._encoded]
        seen = chain(self._dead_rows(), (row.schedule.values() for row in fresh))
        wider = Coding.of(self.ground.choices, seen)
        if wider != self.coding:
            self._code(wider)
            fresh = list(rows)
        for row in fresh:
            self._encoded[row.key] = self.coding.encode(row.schedule.values())

    def codes(self, row: Tried) -> Codes | None:
        """Codes of a row given to `encode`; None where it lacks a parameter."""
        return self._encoded[row.key]

    def row(self, tried: Tried) -> Row | None:
        """What TPE is taught of a row given to `encode`; None where it lacks a parameter."""
        known = self._rows.get((tried.key, tried.time_us))
        if known is None:
            codes = self._encoded[tried.key]
            if codes is None:
                return None
            known = self._rows[tried.key, tried.time_us] = Row(codes, log_time(tried.time_us))
        return known

    def point(self, schedule: Schedule) -> Point | None:
        """What the surrogate sees of a schedule."""
        known = self._points.get(schedule)
        if known is None:
            codes = self.coding.encode(schedule.values())
            if codes is None:
                return None
            if len(self._points) > POINTS_KEPT:
                self._points.clear()
            known = self._points[schedule] = Point(codes, self._log_predicted(schedule))
        return known

    def _log_predicted(self, schedule: Schedule) -> float:
        # A row of another version of the space may be one that the cost model cannot read.
        if not self.ground.legal(schedule):
            return 0.0
        return math.log(max(self.ground.predict(schedule), 1e-3))

    def _code(self, coding: Coding) -> None:
        self.coding, self.tpe, self.metric = coding, Tpe(coding), Metric(coding)
        self._encoded.clear()
        self._rows.clear()
        self._points.clear()
        self._weights = None

    def _dead_rows(self) -> Iterator[dict[str, Value]]:
        """One row for each choice the coding has beyond the live ones, so that it never shrinks."""
        for axis in self.coding.axes:
            for index, choice in enumerate(axis.choices):
                if index not in axis.live:
                    yield {axis.name: choice}

    # ------------------------------------------------------------ the surrogate

    def surrogate(self, done: Sequence[Tried], in_flight: Iterable[Tried]) -> Surrogate | None:
        """From rows given to `encode`; None while too few have a time, or nothing varies."""
        timed = (row for row in done if log_time(row.time_us) is not None)
        if not self.coding.axes or sum(1 for _ in itertools.islice(timed, TIMED_LEAST)) < TIMED_LEAST:
            return None
        every = REFIT_EVERY if len(done) < LATER else REFIT_LATER
        upto = len(done) // every * every
        if self._weights is None or self._weights[0] != upto:
            points, times = self._taught(done[:upto] if upto >= TIMED_LEAST else done)
            self._weights = (upto, fit(self.metric, points, times, self.seed % 2**32))
        points, times = self._taught(done)
        flying = [p for row in in_flight if (p := self.point(row.schedule)) is not None]
        return Surrogate(self.metric, self._weights[1], points, times, flying)

    def _taught(self, done: Sequence[Tried]) -> tuple[list[Point], list[float]]:
        """The best and the latest rows; a failure counts as the slowest time there was."""
        rows = [(row, log_time(row.time_us)) for row in done if self._encoded[row.key] is not None]
        if len(rows) > SURROGATE_ROWS:
            half = SURROGATE_ROWS // 2
            older = [(log, i) for i, (_, log) in enumerate(rows[:-half]) if log is not None]
            best = sorted(i for _, i in sorted(older)[:half])
            rows = [rows[i] for i in best] + rows[-half:]
        worst = max((log for _, log in rows if log is not None), default=0.0)
        points, times = [], []
        for row, log in rows:
            point = self.point(row.schedule)
            if point is not None:
                points.append(point)
                times.append(worst if log is None else log)
        return points, times


def log_time(time_us: float | None) -> float | None:
    """The logarithm of a time; None for a failure, and for what cannot be a time."""
    return None if time_us is None or not time_us > 0 or not math.isfinite(time_us) else math.log(time_us)
