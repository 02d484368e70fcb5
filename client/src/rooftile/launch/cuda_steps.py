"""What does the launcher do on a GPU for one set of sizes? The plan's steps, ready for addresses and a
stream.

What the worker measures (`CudaKernel.prepare`) and what a program calls (`CudaKernel.__call__`) come through
here, so that what was measured is what is served. The bytes of the arguments are those of
`rooftile.plan.pack_args`, which the emulator packs with too: CuPy is given one piece of them for each
parameter, never a Python number whose width it would have to guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rooftile.errors import LaunchError
from rooftile.launch.cuda_runtime import DeviceFacts, Function, Runtime
from rooftile.launch.cuda_tensor_map import Encode, MapArgument
from rooftile.launch.errors import UnsuitableError
from rooftile.launch.steps import packer
from rooftile.plan import (
    TENSOR_MAP_ALIGN,
    TENSOR_MAP_BYTES,
    ConcreteFill,
    ConcreteLaunch,
    ConcretePlan,
    ConcreteTensorMap,
    arg_offsets,
)

# More shared memory than this, static and dynamic together, wants the opt-in (CUDA C++ Programming Guide,
# "Shared Memory 7.x"). Static counts: 16 bytes of barriers and 48 KiB of tiles are over it.
DEFAULT_SMEM_BYTES = 48 * 1024
# Larger ones want cuLaunchKernelEx and a function attribute, which CuPy does not reach.
MAX_CLUSTER = 8

_WIDTH = {"ptr": 8, "i32": 4, "u32": 4, "i64": 8, "f32": 4, "f64": 8, "tensor_map": TENSOR_MAP_BYTES}


class _Bytes:
    """Memory for the arguments of one launch, and a piece of it for each parameter."""

    __slots__ = ("memory", "pieces")

    def __init__(self, types: Sequence[str]) -> None:
        offsets, size = arg_offsets(types)
        # Aligned as the struct they imitate. The driver copies each piece to the place that the kernel's own
        # signature gives it, so this is for whoever reads the memory here, not for the kernel.
        room = np.zeros(size + TENSOR_MAP_ALIGN, np.uint8)
        skip = -room.ctypes.data % TENSOR_MAP_ALIGN
        flat = room[skip : skip + size]
        self.memory = flat.data
        self.pieces = tuple(
            flat[at : at + _WIDTH[name]].view(f"V{_WIDTH[name]}")
            for at, name in zip(offsets, types, strict=True)
        )


class CudaLaunch:
    """One launch of the plan: a function with its grid, and what packs its arguments."""

    __slots__ = (
        "_block",
        "_constants",
        "_free",
        "_function",
        "_grid",
        "_maps",
        "_pack",
        "_pick",
        "_smem_bytes",
        "_types",
    )

    def __init__(
        self, step: ConcreteLaunch, function: Function, slots: Mapping[str, int], encode: Encode
    ) -> None:
        self._function = function
        self._grid, self._block, self._smem_bytes = step.grid, step.block, step.smem_bytes
        self._pack, self._pick, constants = packer(step.args, slots, len(slots))
        self._constants = tuple(constants)
        tensors = [arg for arg in step.args if arg.tensor is not None]
        places = [at for at, value in enumerate(constants) if isinstance(value, ConcreteTensorMap)]
        self._maps = tuple(
            (at, MapArgument(arg, slots.get(arg.tensor.buffer), encode))
            for at, arg in zip(places, tensors, strict=True)
            if arg.tensor is not None
        )
        self._types = tuple(arg.type for arg in step.args)
        # Argument memory that no launch uses now. The driver copies it before launch() returns, but without
        # the GIL: a second thread takes another one. append and pop of a list are atomic.
        self._free: list[_Bytes] = []

    def packed(self, values: tuple[Any, ...]) -> bytes:
        """The arguments' bytes for these values (one for each slot). With tensor maps, on the device that is
        current."""
        if not self._maps:
            return self._pack(*self._pick(values + self._constants))
        constants = list(self._constants)
        for at, argument in self._maps:
            constants[at] = argument.bytes_for(values)
        return self._pack(*self._pick((*values, *constants)))

    def run(self, packed: bytes, stream: int) -> None:
        """Enqueue it."""
        try:
            mine = self._free.pop()
        except IndexError:
            mine = _Bytes(self._types)
        mine.memory[:] = packed
        self._function.launch(self._grid, self._block, mine.pieces, self._smem_bytes, stream)
        self._free.append(mine)


# (launch, None) or (None, (offset, value, bytes)): a fill of the workspace.
_Step = tuple[CudaLaunch | None, tuple[int, int, int] | None]
# (launch, packed arguments), or (None, (address, value, bytes)).
Call = tuple[CudaLaunch | None, Any]


class CudaSteps:
    """A concrete plan over the functions of one artifact on one device. `slots` are the names of the values
    that bind() takes, in order; buffers by their plan names, then scalars."""

    __slots__ = ("_order", "workspace_bytes")

    def __init__(
        self,
        plan: ConcretePlan,
        functions: Mapping[str, Function],
        slots: Sequence[str],
        encode: Encode,
    ) -> None:
        by_name = {name: i for i, name in enumerate(slots)}
        assert len(by_name) == len(slots), "constants lie behind the slots"
        self.workspace_bytes = plan.workspace_bytes
        self._order: list[_Step] = []
        if plan.workspace_zeroed and plan.workspace_bytes:
            self._order.append((None, (0, 0, plan.workspace_bytes)))
        for step in plan.steps:
            if isinstance(step, ConcreteFill):
                if step.bytes:
                    self._order.append((None, (step.offset, step.value, step.bytes)))
            else:
                self._order.append((CudaLaunch(step, functions[step.entry], by_name, encode), None))

    def bind(self, values: tuple[Any, ...], workspace: int) -> list[Call]:
        """The calls for these addresses and scalars, on the device that is current. `values` has one for each
        slot."""
        calls: list[Call] = []
        for launch, fill in self._order:
            if launch is not None:
                calls.append((launch, launch.packed(values)))
            elif fill is not None:
                calls.append((None, (workspace + fill[0], fill[1], fill[2])))
        return calls


def execute(runtime: Runtime, calls: Sequence[Call], stream: int) -> None:
    """Enqueue bound steps in order on a stream of the device that is current."""
    for launch, rest in calls:
        if launch is None:
            address, value, size = rest
            runtime.memset(address, value, size, stream)
        else:
            launch.run(rest, stream)


def check_launches(
    plan: ConcretePlan, functions: Mapping[str, Function], facts: DeviceFacts
) -> dict[str, int]:
    """Refuse what the device cannot launch, with the numbers; else the dynamic shared memory that each entry
    has to be allowed (entries that stay within the default are left out)."""
    wanted: dict[str, int] = {}
    for step in plan.steps:
        if isinstance(step, ConcreteFill):
            continue
        function = functions[step.entry]
        threads = step.block[0] * step.block[1] * step.block[2]
        if threads > function.max_threads:
            raise UnsuitableError(
                f"{step.entry} wants {threads} threads a block; its registers allow {function.max_threads}"
            )
        total = function.static_smem_bytes + step.smem_bytes
        if total > facts.max_smem_bytes:
            raise UnsuitableError(
                f"{step.entry} wants {total} bytes of shared memory "
                f"({function.static_smem_bytes} of them static); "
                f"a block on this device has {facts.max_smem_bytes}"
            )
        x, y, z = step.cluster
        if x * y * z > MAX_CLUSTER:
            raise LaunchError(
                f"{step.entry} wants clusters of {x * y * z} blocks; {MAX_CLUSTER} can be launched"
            )
        if total > DEFAULT_SMEM_BYTES and step.smem_bytes:
            wanted[step.entry] = max(wanted.get(step.entry, 0), step.smem_bytes)
    return wanted
