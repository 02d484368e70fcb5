"""Which step does an instruction become?

One table from opcode to the function that reads the operands once and gives a closure over them; running an
instruction is then one call. context.py: operands; alu.py, moves.py; memory.py, atomics.py, order.py: loads,
stores and fences; copies.py, bulk*.py: asynchronous copies; mbarrier.py, cluster.py; warp.py: between lanes;
matrix.py, wgmma.py: tensor cores; control.py: what ends a block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.errors import PtxError
from emulator.kernel import Kernel
from emulator.machine.decode import (
    alu,
    atomics,
    cluster,
    control,
    copies,
    matrix,
    mbarrier,
    memory,
    moves,
    order,
    warp,
    wgmma,
)
from emulator.machine.decode.context import Context, Reader
from emulator.machine.decode.control import exit_threads
from emulator.machine.wave import Converge, Step, Wave
from emulator.ptx.nodes import Instruction

_TABLE: dict[str, Callable[[Context], Step]] = {
    **dict.fromkeys(alu.OPCODES, alu.arithmetic),
    **dict.fromkeys(("addc", "subc", "madc"), alu.with_carry),
    "mov": moves.move,
    "setp": moves.compare,
    "cvt": moves.convert,
    "selp": moves.select,
    "ld": memory.load,
    "ldu": memory.load,
    "st": memory.store,
    "atom": atomics.atomic,
    "red": atomics.atomic,
    "fence": order.fence,
    "membar": order.fence,
    "prefetch": memory.prefetch,
    "prefetchu": memory.prefetch,
    "cvta": memory.convert_address,
    "isspacep": memory.is_space,
    "cp": copies.copy,
    "shfl": warp.shuffle,
    "vote": warp.vote,
    "match": warp.match,
    "redux": warp.reduce,
    "activemask": warp.active_mask,
    "elect": warp.elect,
    "bar": warp.sync,
    "ldmatrix": matrix.load_matrix,
    "stmatrix": matrix.store_matrix,
    "movmatrix": matrix.move_matrix,
    "mma": matrix.multiply,
    "wgmma": wgmma.wgmma,
    "setmaxnreg": wgmma.give_registers,
    "mbarrier": mbarrier.mbarrier,
    "mapa": cluster.map_address,
    "getctarank": cluster.rank_of,
    "griddepcontrol": cluster.launch_control,
    "createpolicy": cluster.policy,
    "wmma": matrix.wmma,
    "nanosleep": memory.prefetch,
    "pmevent": memory.prefetch,
}
_ENDS: dict[str, Callable[[Context], Step]] = {
    "bra": control.branch,
    "brx": control.branch_indexed,
    "exit": control.leave,
    "ret": control.leave,
    "trap": control.trap,
    "call": control.call,
    "bar": control.barrier,
    "barrier": control.barrier,
    "mbarrier": mbarrier.wait,
    "wgmma": wgmma.wait,
    "setmaxnreg": wgmma.take_registers,
}
_LATER = {"tcgen05": "sm_100a", "tensormap": "sm_90", "clusterlaunchcontrol": "sm_100", "multimem": "sm_90"}
_GO_ON = ("mbarrier", "wgmma", "setmaxnreg")
"""Instructions that end a block and may be guarded: the other lanes go on behind them."""


def decode(kernel: Kernel, instruction: Instruction, site: int) -> Step:
    """The step of an instruction inside a block. PtxError, with its line, where it is not known."""
    c = Context(kernel, instruction, site)
    build = _TABLE.get(instruction.opcode)
    if build is None:
        raise _unknown(c)
    step = _built(c, build)
    if instruction.guard is None:
        return step
    return guarded(step, c.predicate(instruction.guard), instruction.negated)


def decode_end(kernel: Kernel, instruction: Instruction, site: int) -> Step:
    """The step that ends a block, and says where its threads go on."""
    c = Context(kernel, instruction, site)
    build = _ENDS.get(instruction.opcode)
    if build is None:
        raise _unknown(c)
    if c.i.opcode in _GO_ON and c.i.guard is not None:
        return _built(c, lambda c: control.guarded_end(c, build))
    return _built(c, build)


def _built(c: Context, build: Callable[[Context], Step]) -> Step:
    try:
        return build(c)
    except PtxError:
        raise
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        StopIteration,
        NotImplementedError,
    ) as e:
        # Operands of a form that no reader of this instruction thought of: malformed, as far as we know it.
        raise c.error(f"malformed or unknown form ({type(e).__name__}: {e})") from e


def _unknown(c: Context) -> PtxError:
    since = _LATER.get(c.i.opcode)
    return c.error(f"the emulator does not know {c.i.opcode} yet" + (f" ({since} and up)" if since else ""))


def guarded(step: Step, read: Reader, negated: bool) -> Step:
    """The step for those lanes only whose predicate says so."""

    def run(w: Wave) -> None:
        wanted = w.whole(read(w))
        if negated:
            wanted = ~wanted
        mask, idx, warps, rows = w.mask, w.idx, w.warps, w.rows
        active = wanted if mask is None else wanted & mask
        count = np.count_nonzero(active)
        if not count:
            return
        try:
            if count != active.size:
                some = np.asarray(active.any(axis=1))
                if np.count_nonzero(some) != len(some):
                    active = active[some]
                    w.focus(warps[some])
            w.mask = None if count == active.size else active
            step(w)
        except Converge as wait:
            wait.passing = ~wanted
            raise
        finally:
            w.mask, w.idx, w.warps, w.rows = mask, idx, warps, rows

    return run


__all__ = ["decode", "decode_end", "exit_threads", "guarded"]
