"""In which words is a conflict told: who touched what, and what does not order the two?"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from emulator.checks.shadow import ASYNC, OBJECT
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import Index
    from emulator.checks.shadow import Conflict
    from emulator.machine.memory import Buffer
    from emulator.machine.wave import Wave

U8: TypeAlias = npt.NDArray[np.uint8]
Bools: TypeAlias = npt.NDArray[np.bool_]


def shared_conflict(w: Wave, c: Conflict | None, site: int) -> None:
    """A conflict over shared memory, if there is one, told with the area and stage it is in."""
    if c is None:
        return
    offset = c.granule * w.kernel.shared_granule % w.shared.pitch
    name, stage, where = w.launch.area(offset)
    cta = c.granule * w.kernel.shared_granule // w.shared.pitch
    if cta != int(w.cta_of[c.warp]):
        where += f" of CTA {w.launch.cta_name(w, cta)}"
    if c.what == "no proxy fence":
        kind = FaultKind.PROXY
        text = (
            f"it reads or writes {where} of shared memory by the async proxy, which {_who(w, c)} wrote at"
            f" {w.kernel.where(c.other_site)}: there is no fence.proxy.async between the two"
        )
    elif c.other_lane == OBJECT:
        kind, text = FaultKind.RACE, f"it touches {where} of shared memory, where an mbarrier lies"
    elif c.what == "read under way":
        kind = FaultKind.RACE
        text = (
            f"it overwrites {where} of shared memory, which the bulk store of {_who(w, c)} at"
            f" {w.kernel.where(c.other_site)} may still read: no cp.async.bulk.wait_group covers it"
        )
    elif c.other_lane == ASYNC or c.other_warp >= w.clocks.total:
        kind, text = FaultKind.RACE, f"{_RACES[c.what]} {where} of shared memory, " + _agent(w, c)
    elif c.what == "unwritten":
        if not w.launch.watch.strict:
            return
        kind, text = FaultKind.READ_UNWRITTEN, f"it reads {where} of shared memory, which nobody has written"
    elif c.what == "copy under way":
        kind = FaultKind.RACE
        text = (
            f"it touches {where} of shared memory, which the copy of {_who(w, c)} at"
            f" {w.kernel.where(c.other_site)} is still writing: no wait covers that copy"
        )
    else:
        kind, text = FaultKind.RACE, f"{_RACES[c.what]} {where} of shared memory, " + _unordered(w, c)
    w.launch.fault(
        w, kind, site, text, warp=c.warp, lane=c.lane, buffer=name, stage=stage, other_site=c.other_site
    )


_RACES = {
    "write after write": "it overwrites",
    "read after write": "it reads",
    "write after read": "it overwrites",
}


def _unordered(w: Wave, c: Conflict) -> str:
    did = "reads" if c.what == "write after read" else "writes"
    return f"which {_who(w, c)} {did} at {w.kernel.where(c.other_site)}: nothing orders the two"


def _agent(w: Wave, c: Conflict) -> str:
    """Of something that an asynchronous unit does or did."""
    where = w.kernel.where(c.other_site)
    if c.other_warp < w.clocks.total:
        return (
            f"which the asynchronous work that {_who(w, c)} issues at {where} touches: nothing orders the"
            f" two"
        )
    barrier = w.mbarriers.of_agent(c.other_warp)
    if c.what == "write after read":
        return f"which the WGMMA at {where} reads: no wait for its group is known here"
    if barrier is None:
        return f"which the copy at {where} writes: nothing orders the two"
    return (
        f"which the copy at {where} writes that the mbarrier {w.mbarriers.name(barrier.offset)} counts: the"
        f" end of"
        " that phase is not known here"
    )


def _who(w: Wave, c: Conflict) -> str:
    if c.other_warp >= w.clocks.total:
        return "a copy"
    lane = "" if c.other_lane >= 32 else f" lane {c.other_lane}"
    if c.other_warp < 0:
        return "an earlier access"
    other = w.launch.cta_of_number(c.other_warp)
    cta = "" if other == int(w.ctas[w.cta_of[c.warp]]) else f" of CTA {w.launch.cta_at(other)}"
    return f"warp {c.other_warp % w.per_cta}{lane}{cta}"


def global_conflict(w: Wave, c: Conflict | None, site: int, buffer: Buffer) -> None:
    """A conflict over global memory, if there is one, told with the row of the buffer it is in."""
    if c is None:
        return
    where = f"{buffer.name} {buffer.index_of(c.granule * w.launch.granule(buffer))}"
    if c.what == "unwritten":
        kind, text = FaultKind.READ_UNWRITTEN, f"it reads {where}, which nobody has written"
    elif c.what == "no proxy fence":
        kind = FaultKind.PROXY
        text = (
            f"it reads or writes {where} by the async proxy, which {_who(w, c)} wrote at"
            f" {w.kernel.where(c.other_site)}: there is no fence.proxy.async between the two"
        )
    elif c.other_lane == ASYNC:
        kind = FaultKind.RACE
        text = (
            f"{_RACES[c.what]} {where}, which the bulk copy that {_who(w, c)} issues at"
            f" {w.kernel.where(c.other_site)} touches: nothing orders the two"
        )
    else:
        kind, text = FaultKind.RACE, f"{_RACES[c.what]} {where}, " + _unordered(w, c)
    w.launch.fault(w, kind, site, text, warp=c.warp, lane=c.lane, buffer=buffer.name, other_site=c.other_site)


def two_lanes(
    w: Wave, site: int, width: int, granule: Index, twice: Bools, data: U8, row: Index, lane: Index
) -> None:
    """Several lanes wrote the same bytes at once: harmless only if all wrote the same."""
    per = max(width // granule.shape[1], 1)
    pieces = data[:, : per * granule.shape[1]].reshape(len(data), granule.shape[1], per)
    flat, values = granule.ravel(), pieces.reshape(-1, per)
    order = np.argsort(flat, kind="stable")
    same = flat[order][1:] == flat[order][:-1]
    differs = (values[order][1:] != values[order][:-1]).any(axis=1) & same
    if not differs.any():
        return
    pieces_each = granule.shape[1]
    i, j = int(order[1:][differs][0]) // pieces_each, int(order[:-1][differs][0]) // pieces_each
    if row[i] == row[j]:
        who = "several lanes write"
    else:
        other = int(w.warps[row[j]])
        cta = w.launch.cta_name(w, int(w.cta_of[other]))
        who = f"it and warp {other % w.per_cta} of CTA {cta} write"
    w.launch.fault(
        w, FaultKind.RACE, site, f"{who} different values to the same bytes, and nothing orders the two",
        row=int(row[i]), lane=int(lane[i]),
    )  # fmt: skip


__all__ = ["global_conflict", "shared_conflict", "two_lanes"]
