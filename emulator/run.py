"""How does a LaunchPlan run in the emulator: buffers at far addresses, its steps in order, a Report?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from rooftile.errors import PlanError
from rooftile.plan import ConcreteLaunch, Encode, LaunchPlan, arg_offsets, pack_args
from rooftile.plan.steps import ConcreteFill
from rooftile.plan.tensor_map import TENSOR_MAP_BYTES

from emulator.errors import EmulatorError
from emulator.kernel import Kernel
from emulator.machine.launch import Launching, Watch, symbols_of
from emulator.machine.memory import Buffer, GlobalMemory
from emulator.machine.tensor_maps import TensorMaps
from emulator.machine.wave import Stop
from emulator.ptx.nodes import Module
from emulator.ptx.parser import parse
from emulator.report import Fault, FaultKind, Limits, Order, Region, Report

Array: TypeAlias = npt.NDArray[Any]

Pack: TypeAlias = Callable[[ConcreteLaunch, Mapping[str, int], Encode], bytes]

OUTPUTS = ("out", "lse")
"""Buffers that a kernel may write, beside the workspace."""
_MOST_SHARED = 227 << 10
_MOST_THREADS = 1024
_MOST_BLOCK = (1024, 1024, 64)
_MOST_GRID = (2**31 - 1, 65535, 65535)
"""Of any device so far (CUDA C++ Programming Guide, technical specifications)."""
_MOST_CLUSTER = 16
"""With a kernel that allows more than the portable 8."""
_MOST_WARPS = 1 << 25
_MOST_WORKSPACE = 1 << 29


@dataclass(frozen=True)
class Operand:
    """An array as the kernel shall see it: at `strides` (bytes, may be anything that does not overlap), so
    that a small array stands for a matrix with rows 2^31 apart; `misalign` bytes beyond a well aligned
    address."""

    array: Array
    strides: tuple[int, ...] | None = None
    misalign: int = 0


class Program:
    """A PTX text, parsed; its entries are decoded when first run."""

    def __init__(self, module: Module, shared_align: int = 1) -> None:
        self.module = module
        self._shared_align = shared_align
        self._kernels: dict[str, Kernel] = {}

    @classmethod
    def from_ptx(cls, text: str | bytes, *, shared_align: int = 1) -> Program:
        """PtxError, with its line, for what the emulator does not understand. Dynamic shared memory begins at
        a multiple of what the kernel declares and of nothing more, unless `shared_align` says so: devices
        place it better than they promise, and some compilers rely on it (Triton on 1024 bytes)."""
        if isinstance(text, bytes):
            text = text.rstrip(b"\0").decode("utf-8", "replace")
        return cls(parse(text), shared_align)

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries that are defined."""
        return tuple(f.name for f in self.module.functions if f.is_entry and f.defined)

    def kernel(self, name: str) -> Kernel:
        """An entry made ready to run."""
        known = self._kernels.get(name)
        if known is None:
            if name not in self.entries:
                raise EmulatorError(f"entry {name} is not in the PTX; there are {', '.join(self.entries)}")
            known = self._kernels[name] = Kernel(
                self.module, self.module.function(name), self._shared_align
            )
        return known


def run_plan(
    program: Program,
    plan: LaunchPlan,
    names: Mapping[str, int],
    arrays: Mapping[str, Array | Operand],
    scalars: Mapping[str, float] | None = None,
    *,
    order: Order | None = None,
    regions: Sequence[Region] = (),
    roles: Mapping[str, range] | None = None,
    limits: Limits | None = None,
    sm_count: int = 4,
    stop_at_first: bool = True,
    counting: bool = True,
    strict: bool = True,
    fp8_bits: int | None = None,
    pack: Pack | None = None,
) -> Report:
    """Run every step of `plan` for the sizes in `names` on `arrays` (by buffer name; outputs are written in
    place, whatever lies in them before is not to be read unless the same array is also an input).
    EmulatorError where the PTX or the plan cannot be run at all; what the kernel does wrong is in the Report.

    Shared memory that nobody wrote holds NaN, so a result that depends on it shows. `strict` makes the
    reading itself a fault. Some right kernels do read such bytes, for products that they never store (CUTLASS
    2 for rows outside the result): those pass with `strict` off only.

    `fp8_bits`: bits of the mantissa that a WGMMA of fp8 keeps of its sum, cut off below; 14 is about what
    Hopper does (measured by others, not documented), so that a long sum without promotion to f32 is seen to
    lose. None: sums are exact.

    `pack` makes the parameters of a launch in another way than from the plan's arguments: for kernels from
    outside whose parameters are one struct. It is given the launch, the buffers' addresses and what encodes
    tensor maps."""
    order = order or Order()
    started = time.monotonic()
    known = {"sm_count": sm_count, "threads": 1, **names}
    try:
        concrete = plan.concrete(known)
    except PlanError as error:
        raise EmulatorError(str(error)) from None
    launches = [step for step in concrete.steps if isinstance(step, ConcreteLaunch)]
    granule = math.gcd(*(program.kernel(step.entry).global_granule for step in launches)) if launches else 1
    memory = GlobalMemory()
    watch = Watch(
        memory,
        order,
        limits or Limits(),
        tuple(regions),
        roles,
        sm_count,
        granule,
        stop_at_first,
        counting,
        strict,
        fp8_bits,
    )
    places = _place(memory, watch, arrays)
    pointers = {name: buffer.base for name, buffer in places.items() if buffer.size}
    workspace: Buffer | None = None
    if concrete.workspace_bytes > _MOST_WORKSPACE:
        raise EmulatorError(
            f"a workspace of {concrete.workspace_bytes} bytes is over {_MOST_WORKSPACE}: emulate smaller"
            " sizes"
        )
    if concrete.workspace_bytes:
        workspace = Buffer.of("workspace", memory.next_slot, (concrete.workspace_bytes,), (1,), 1, True)
        memory.add(workspace)
        workspace.data[:] = 0 if concrete.workspace_zeroed else 0xFF
        watch.watch(workspace, written=concrete.workspace_zeroed)
        pointers["workspace"] = workspace.base
    try:
        for number, step in enumerate(concrete.steps):
            if isinstance(step, ConcreteFill):
                _fill(watch, workspace, step)
            else:
                _launch(program, watch, number, step, pointers, scalars or {}, pack)
        for name in OUTPUTS:
            if name in places:
                _all_written(watch, places[name])
    except Stop:
        pass
    for name, given in arrays.items():
        if name in OUTPUTS:
            _copy_back(places[name], given)
    counters = watch.counters.to_json() if watch.counters is not None else {}
    return Report(
        tuple(watch.faults.values()), counters, watch.instructions, time.monotonic() - started, order
    )


def _place(memory: GlobalMemory, watch: Watch, arrays: Mapping[str, Array | Operand]) -> dict[str, Buffer]:
    """Each array in a buffer of its own; the same array under two names in one."""
    places: dict[str, Buffer] = {}
    seen: dict[int, str] = {}
    # Outputs first, so that an input that is also an output lies in a buffer that may be written.
    for name in sorted(arrays, key=lambda n: n not in OUTPUTS):
        given = arrays[name]
        array = given.array if isinstance(given, Operand) else given
        if id(array) in seen:
            first = seen[id(array)]
            places[name] = places[first]
            if first in OUTPUTS:
                watch.shadows[places[first].name].write_epoch[:] = 1
            continue
        seen[id(array)] = name
        strides = (given.strides if isinstance(given, Operand) else None) or array.strides
        misalign = given.misalign if isinstance(given, Operand) else 0
        writable = name in OUTPUTS
        try:
            buffer = Buffer.of(
                name, memory.next_slot, array.shape, strides, array.itemsize, writable, misalign
            )
        except ValueError as error:
            raise EmulatorError(str(error)) from None
        memory.add(buffer)
        flat = np.frombuffer(_packed(array, strides).tobytes(), np.uint8)
        buffer.data[: len(flat)] = flat
        if writable:
            watch.watch(buffer, written=False)
        places[name] = buffer
    return places


def _axes(array: Array, strides: Sequence[int]) -> list[int]:
    """Dimensions from the widest stride to the narrowest; those of length 1 do not matter."""
    return sorted(range(array.ndim), key=lambda d: (array.shape[d] > 1, strides[d]), reverse=True)


def _packed(array: Array, strides: Sequence[int]) -> Array:
    return array.transpose(_axes(array, strides))


def _copy_back(buffer: Buffer, given: Array | Operand) -> None:
    array = given.array if isinstance(given, Operand) else given
    if not array.size:
        return
    strides = (given.strides if isinstance(given, Operand) else None) or array.strides
    view = _packed(array, strides)
    view[...] = buffer.data[: buffer.size].view(array.dtype).reshape(view.shape)


def _fill(watch: Watch, workspace: Buffer | None, step: ConcreteFill) -> None:
    if workspace is None or not step.bytes:
        return
    workspace.data[step.offset : step.offset + step.bytes] = step.value
    granule = watch.buffer_granule(workspace)
    first, last = step.offset // granule, -(-(step.offset + step.bytes) // granule)
    watch.shadows["workspace"].write_epoch[first:last] = 1


def _launch(
    program: Program,
    watch: Watch,
    number: int,
    step: ConcreteLaunch,
    pointers: Mapping[str, int],
    scalars: Mapping[str, float],
    pack: Pack | None,
) -> None:
    kernel = program.kernel(step.entry)
    where = f"launch {step.entry}"
    maps = TensorMaps()
    if pack is not None:
        packed = pack(step, pointers, maps.encode)
        if len(packed) < kernel.function.param_bytes:
            raise EmulatorError(
                f"{where}: {len(packed)} bytes of parameters, the kernel takes {kernel.function.param_bytes}"
            )
    else:
        packed = _packed_args(kernel, step, where, pointers, scalars, maps)
    threads = math.prod(step.block)
    _check_geometry(where, step, threads)
    _check_directives(kernel, step, where, threads)
    launching = Launching(
        kernel, watch, number, step.grid, step.block, step.smem_bytes, packed, step.cluster, maps.tensors
    )
    launching.symbols = symbols_of(kernel, watch.memory, watch)
    launching.run()


def _packed_args(
    kernel: Kernel,
    step: ConcreteLaunch,
    where: str,
    pointers: Mapping[str, int],
    scalars: Mapping[str, float],
    maps: TensorMaps,
) -> bytes:
    """The arguments of a launch, held against the kernel's parameters."""
    params = kernel.function.params
    if len(params) != len(step.args):
        raise EmulatorError(f"{where}: the plan has {len(step.args)} arguments, the kernel {len(params)}")
    try:
        packed = pack_args(step.args, pointers, scalars, maps.encode)
    except PlanError as error:
        raise EmulatorError(f"{where}: {error}") from None
    types = [arg.type for arg in step.args]
    offsets, _ = arg_offsets(types)
    ends = [*offsets[1:], len(packed)][: len(offsets)]
    for arg, param, offset, end in zip(step.args, params, offsets, ends, strict=True):
        width = min(end - offset, _WIDTH[arg.type])
        if param.offset != offset or param.size != width:
            raise EmulatorError(
                f"{where}: argument {arg.name} is {width} bytes at {offset}, the kernel's {param.name} is"
                f" {param.size} bytes at {param.offset}"
            )
    return packed


def _check_directives(kernel: Kernel, step: ConcreteLaunch, where: str, threads: int) -> None:
    """What the kernel was built for."""
    limit = kernel.function.directives.get("maxntid")
    if limit is not None and threads > math.prod(int(n) for n in limit):
        raise EmulatorError(f"{where}: {threads} threads, the kernel was built for at most {limit}")
    exact = kernel.function.directives.get("reqntid")
    if exact is not None and step.block != (*map(int, exact), 1, 1)[:3]:
        raise EmulatorError(f"{where}: block {step.block}, the kernel was built for {exact} only")
    said = kernel.function.directives
    compiled = tuple(map(int, said["reqnctapercluster"])) if said.get("reqnctapercluster") else None
    if compiled is not None and (*compiled, 1, 1)[:3] != step.cluster:
        raise EmulatorError(
            f"{where}: cluster {step.cluster}, the kernel was built for {(*compiled, 1, 1)[:3]} only"
        )
    if kernel.shared_bytes(step.smem_bytes) > _MOST_SHARED:
        raise EmulatorError(
            f"{where}: {kernel.shared_bytes(step.smem_bytes)} bytes of shared memory; no device has that"
        )


def _check_geometry(where: str, step: ConcreteLaunch, threads: int) -> None:
    """What no device would launch."""
    for name, given, most in (("block", step.block, _MOST_BLOCK), ("grid", step.grid, _MOST_GRID)):
        if any(not 0 < n <= m for n, m in zip(given, most, strict=True)):
            raise EmulatorError(f"{where}: {name} {given}; each must be at least 1 and at most {most}")
    if threads > _MOST_THREADS:
        raise EmulatorError(f"{where}: a block of {threads} threads; at most {_MOST_THREADS} are possible")
    if -(-threads // 32) * math.prod(step.grid) > _MOST_WARPS:
        raise EmulatorError(
            f"{where}: grid {step.grid} has more warps than the {_MOST_WARPS} that are counted here"
        )
    if math.prod(step.cluster) > _MOST_CLUSTER or any(
        n % c for n, c in zip(step.grid, step.cluster, strict=True)
    ):
        raise EmulatorError(
            f"{where}: cluster {step.cluster} for grid {step.grid}; at most {_MOST_CLUSTER} CTAs, and a"
            f" whole number"
            " of clusters"
        )


_WIDTH = {"tensor_map": TENSOR_MAP_BYTES, "ptr": 8, "i32": 4, "u32": 4, "i64": 8, "f32": 4, "f64": 8}


def _all_written(watch: Watch, buffer: Buffer) -> None:
    """Every element of an output must have been written, whatever lay there before."""
    shadow = watch.shadows[buffer.name]
    granule = watch.buffer_granule(buffer)
    count = -(-buffer.size // granule)
    missing = shadow.never(count)
    if not missing.any():
        return
    at = int(np.nonzero(missing)[0][0]) * granule
    watch.faults[(FaultKind.NOT_WRITTEN, buffer.name)] = Fault(
        FaultKind.NOT_WRITTEN,
        f"{int(missing.sum()) * granule} of the {buffer.size} bytes of {buffer.name} were not written, the"
        f" first is {buffer.index_of(at)}",
        buffer=buffer.name,
    )
