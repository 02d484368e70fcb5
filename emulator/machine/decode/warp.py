"""Between the lanes of a warp: shuffles, votes, reductions, warp barriers (PTX ISA 9.7.9, 9.7.13)."""
from __future__ import annotations
from emulator.machine.decode.context import Context
from emulator.machine.wave import Step, Wave

def _todo(c: Context) -> Step:
    raise c.error("not yet")
shuffle = vote = match = reduce = active_mask = elect = _todo

def sync(c: Context) -> Step:
    """bar.warp.sync membermask."""
    c.allow("warp", "sync")
    (mask,) = c.operands(1)
    members = c.members(mask)

    def step(w: Wave) -> None:
        members(w)
        w.counters.add("waits.warp", w.warps)
        # A new epoch: what lanes did before is ordered before what any of them does now.
        w.clocks.release(w.warps)

    return step
