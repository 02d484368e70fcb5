"""What does the launcher do for one set of sizes? The plan's steps, ready to be bound to addresses and run.

The same code runs what the worker measures (`X86Kernel.prepare`) and what a program calls
(`X86Kernel.__call__`), so that what was measured is what is served.
"""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rooftile.launch.errors import LaunchError, UnsuitableError
from rooftile.launch.pool import Pool
from rooftile.plan import ConcreteArg, ConcreteFill, ConcretePlan, arg_offsets

# (function, argument struct, threads), or (None, (address, value, bytes), 0) for a fill.
Call = tuple[ctypes.c_void_p | None, Any, int]

_CODES = {"ptr": "Q", "i32": "i", "u32": "I", "i64": "q", "f32": "f", "f64": "d", "tensor_map": "128s"}


_Pack = Callable[..., bytes]
_Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def packer(
    args: Sequence[ConcreteArg], slots: Mapping[str, int], first_constant: int
) -> tuple[_Pack, _Pick, list[Any]]:
    """Packs one argument struct: pick(values + constants) gives what pack(*...) wants.

    A struct.Struct made once packs in a third of the time of packing argument by argument; the tests compare
    its bytes with rooftile.plan.pack_args. In a tensor map's place among the constants stands the map, whose
    bytes whoever launches puts there (plans have them on a GPU only).
    """
    offsets, size = arg_offsets([arg.type for arg in args])
    codes, at = "<", 0
    indices: list[int] = []
    constants: list[Any] = []
    for arg, offset in zip(args, offsets, strict=True):
        code = _CODES[arg.type]
        codes += f"{offset - at}x{code}"
        at = offset + struct.calcsize("<" + code)
        if arg.value is None and arg.tensor is None:
            name = arg.buffer or arg.scalar or ""
            if name in slots:
                indices.append(slots[name])
                continue
            if arg.buffer is None:
                raise LaunchError(f"the plan wants the scalar {name}, which the call does not have")
        # A buffer that the call does not have is a null pointer.
        indices.append(first_constant + len(constants))
        constants.append(arg.tensor or arg.value or 0)
    packed = struct.Struct(codes + f"{size - at}x")
    if len(indices) > 1:
        return packed.pack, operator.itemgetter(*indices), constants
    only = tuple(indices)
    return packed.pack, lambda values: tuple(values[i] for i in only), constants


class Steps:
    """A concrete plan over the functions of one artifact. `slots` are the names of the values that bind()
    takes, in order; buffers by their plan names, then scalars."""

    __slots__ = ("_fills", "_launches", "_order", "needs_lock", "workspace_bytes")

    def __init__(
        self,
        plan: ConcretePlan,
        functions: Mapping[str, ctypes.c_void_p],
        slots: Sequence[str],
        threads: int,
    ) -> None:
        by_name = {name: i for i, name in enumerate(slots)}
        self.workspace_bytes = plan.workspace_bytes
        self._order: list[tuple[Any, ...]] = []
        if plan.workspace_zeroed and plan.workspace_bytes:
            self._order.append((None, 0, 0, plan.workspace_bytes))
        for step in plan.steps:
            if isinstance(step, ConcreteFill):
                if step.bytes:
                    self._order.append((None, step.offset, step.value, step.bytes))
                continue
            if step.threads > threads:
                raise UnsuitableError(f"the plan wants {step.threads} threads, the pool has {threads}")
            pack, pick, constants = packer(step.args, by_name, len(slots))
            self._order.append((functions[step.entry], pick, pack, tuple(constants), step.threads))
        self._fills = [step for step in self._order if step[0] is None]
        self._launches = [step for step in self._order if step[0] is not None]
        # One launch without scratch memory shares nothing with other calls; all else must not interleave.
        self.needs_lock = bool(self._fills) or len(self._launches) > 1 or self.workspace_bytes > 0

    def bind(self, values: tuple[Any, ...], workspace: int) -> list[Call]:
        """The calls for these addresses and scalars. `values` has one for each slot."""
        if not self._fills:
            return [
                (function, pack(*pick(values + constants)), threads)
                for function, pick, pack, constants, threads in self._launches
            ]
        calls: list[Call] = []
        for step in self._order:
            if step[0] is None:
                _, offset, value, size = step
                calls.append((None, (workspace + offset, value, size), 0))
            else:
                function, pick, pack, constants, threads = step
                calls.append((function, pack(*pick(values + constants)), threads))
        return calls


def execute(pool: Pool, calls: Sequence[Call]) -> None:
    """Run bound steps in order; one call into C each, without the GIL."""
    run, handle = pool.run_c, pool.handle
    for function, args, threads in calls:
        if function is None:
            ctypes.memset(*args)
        elif code := run(handle, function, args, threads):
            pool.again(code, function, args, threads)
