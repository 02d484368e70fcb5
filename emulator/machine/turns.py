"""Whose turn is it: which lanes execute the next block?"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from emulator.machine.group import Array, Index

if TYPE_CHECKING:
    from emulator.machine.wave import Wave

Bools: TypeAlias = npt.NDArray[np.bool_]

_FAR = np.iinfo(np.int32).max
_PATIENCE = 256
"""Turns that one place may take in a row while lanes elsewhere wait for theirs: it may be a loop that waits
for them."""


class Turns:
    """Chooses by the run's order."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        self._serial = w.order.kind in ("ahead", "behind")
        self._at: dict[int, int] = {}
        self._turn = 0
        self._streak: Array = np.zeros(1, np.int32)
        """How many turns in a row each warp has had (ahead and behind)."""
        self._rests: Array | None = None
        """Until which turn a warp stands back."""

    def next(self, live: Bools, able: Bools) -> tuple[int, Index, Bools]:
        """(place, warps, their lanes (rows, 32)), of the lanes that can run, `live` (all warps, 32), and of
        the warps that have any, `able`."""
        if self._w.order.kind == "random":
            return self._draw(live, able)
        if self._serial:
            live = self._foremost(live)
        at = np.where(live, self._w.pc, _FAR)
        start = int(at.min())
        turns = self._at[start] = self._at.get(start, 0) + 1
        if turns > _PATIENCE and not self._serial:
            places = np.unique(at[live])
            if len(places) > 1:
                start = int(min(places, key=lambda p: (self._at.get(int(p), 0) // _PATIENCE, p)))
        here = at == start
        warps = np.nonzero(here.any(axis=1))[0]
        return start, warps, here if len(warps) == self._w.count else here[warps]

    def _foremost(self, live: Bools) -> Bools:
        """Lanes of one warp that can run: the first (ahead) or last (behind). Where CTAs have nothing to do
        with each other, one of each CTA, which comes to the same and takes fewer turns."""
        parts = 1 if self._w.clocks.full else len(self._w.ctas)
        can = live.any(axis=1).reshape(parts, -1)
        if self._rests is not None:
            awake = can & (self._rests <= self._turn)
            can = np.where(awake.any(axis=1, keepdims=True), awake, can)
        if self._w.order.kind == "ahead":
            keep = can.argmax(axis=1)
        else:
            keep = can.shape[1] - 1 - can[:, ::-1].argmax(axis=1)
        only = np.zeros_like(can)
        only[np.arange(parts), keep] = True
        # Who has run for long without a pause may be spinning: the others get their turns.
        self._turn += 1
        self._streak = np.where(only, self._streak + 1, 0)
        tired = self._streak > _PATIENCE
        if tired.any():
            rests = np.zeros(can.shape, np.int64) if self._rests is None else self._rests
            self._rests = np.where(tired, self._turn + 4 * _PATIENCE, rests)
            self._streak[tired] = 0
        chosen: Bools = live & only.reshape(-1, 1)
        return chosen

    def _draw(
        self, live: Bools, able: Bools
    ) -> tuple[int, Index, Bools]:
        """The place of a random lane, and a random choice of warps with lanes there: see _execute."""
        w = self._w
        some = np.nonzero(able)[0]
        first = int(some[w.rng.integers(len(some))])
        lanes = np.nonzero(live[first])[0]
        place = int(w.pc[first, lanes[w.rng.integers(len(lanes))]])
        draw = w.rng.random()
        # Where CTAs have nothing to do with each other, the same warps of each.
        count = w.count if w.clocks.full else w.per_cta
        if draw < 0.4:
            rows = np.arange(first % count, w.count, count)
        elif draw < 0.8:
            chosen = w.rng.random(count) < 0.5
            chosen[first % count] = True
            rows = np.nonzero(chosen if count == w.count else np.tile(chosen, w.count // count))[0]
        else:
            rows = some
        here = live[rows] & (w.pc[rows] == place)
        if len(rows) > 1:
            there = here.any(axis=1)
            rows, here = rows[there], here[there]
        return place, rows, here


__all__ = ["Turns"]
