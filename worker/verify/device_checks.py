"""Is one CUDA candidate right on one prepared case, and if not, what exactly is wrong?

As checks.py for the CPU, with the same bounds and the same words for what is found: everything a kernel may
write is poisoned before a run; afterwards each output element was written and is within its bound, no margin,
no gap between rows and no input has changed. Takes numpy or CuPy through a DeviceMemory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from rooftile.plan import Launch, LaunchPlan, evaluate
from rooftile.problem import operand_dtype, operand_shape

from worker.verify.bounds import Bound, Comparison, compare
from worker.verify.cases import Case
from worker.verify.checks import CheckResult, VerifyFailure
from worker.verify.device_elements import (
    CHUNK,
    Array,
    decode,
    encode,
    fill_random,
    poison_word,
    storage,
    unsigned,
)
from worker.verify.device_integers import integers_of
from worker.verify.device_memory import DeviceBuffer, DeviceMemory
from worker.verify.device_reference import MOST_FLOPS, parts_of
from worker.verify.prepared import INPUTS, Part, as_matrix, wanted_inputs

WORKSPACE_ALIGN = 256
Announce = Callable[[Case], None]


class Prepared(Protocol):
    """What a launcher gives when it is bound to addresses."""

    def run(self) -> None: ...


class Launchable(Protocol):
    """A kernel as the checks need it: CudaKernel, or the Baseline."""

    @property
    def plan(self) -> LaunchPlan: ...

    def machine_names(self) -> dict[str, int]: ...

    def prepare(
        self,
        names: Mapping[str, int],
        pointers: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> Prepared: ...


@dataclass(frozen=True)
class DeviceCase:
    """A case with its inputs on the device and its reference."""

    case: Case
    inputs: Mapping[str, DeviceBuffer]
    parts: tuple[Part, ...]
    checksums: Mapping[str, int]

    @property
    def whole(self) -> bool:
        """Every element has a reference."""
        return self.parts[0].index == ()

    @property
    def bound(self) -> Bound:
        """The bound of one element (parts differ only by their RMS)."""
        return max((part.bound for part in self.parts), key=lambda bound: bound.absolute)

    def check_inputs(self) -> None:
        """Raise VerifyFailure for an input that has changed: a kernel wrote where it may only read."""
        for name, buffer in self.inputs.items():
            if buffer.checksum() != self.checksums[name]:
                raise VerifyFailure(
                    "out_of_bounds",
                    {
                        "message": f"wrote into the read-only {name}",
                        "buffer": name,
                        "where": "into the read-only",
                        "access": "write",
                        "on": self.case.to_json(),
                    },
                )


def operand_view(case: Case, operand: str, buffer: DeviceBuffer, memory: DeviceMemory) -> Array:
    """The operand as an array of words in its shape and pitch."""
    xp, problem, names = memory.xp, case.problem, case.names()
    shape, kind = operand_shape(problem, operand), storage(operand_dtype(problem, operand))
    if 0 in shape:
        return xp.empty(shape, kind)
    flat = buffer.data().view(kind)
    if operand == "bias":
        return flat
    strides: tuple[int, ...] = (names[f"ld_{operand}"] * kind.itemsize, kind.itemsize)
    if len(shape) == 3:
        strides = (names[f"stride_{operand}"] * kind.itemsize, *strides)
    return xp.lib.stride_tricks.as_strided(flat, shape, strides)


def span_bytes(case: Case, operand: str) -> int:
    """Bytes from the first element of an operand to the end of its last."""
    shape, names = operand_shape(case.problem, operand), case.names()
    item = storage(operand_dtype(case.problem, operand)).itemsize
    if 0 in shape:
        return 0
    if operand == "bias":
        return int(shape[0] * item)
    rows, cols = shape[-2:]
    reach = (case.problem.batch - 1) * names[f"stride_{operand}"] + (rows - 1) * names[f"ld_{operand}"] + cols
    return int(reach * item)


def new_buffer(case: Case, operand: str, memory: DeviceMemory) -> DeviceBuffer:
    """Memory for an operand, poisoned throughout."""
    dtype = operand_dtype(case.problem, operand)
    align = max(case.align, storage(dtype).itemsize)
    size = span_bytes(case, operand)
    return DeviceBuffer(
        memory, operand, size, dtype, placement=case.placement, offset=case.offset, align=align
    )


def prepare_device_case(case: Case, memory: DeviceMemory, *, most_flops: float = MOST_FLOPS) -> DeviceCase:
    """Inputs, reference and bound of a case."""
    if case.problem.scale.a is not None or case.problem.scale.b is not None:
        raise NotImplementedError("scaled operands have no reference on a GPU yet")
    inputs: dict[str, DeviceBuffer] = {}
    arrays: dict[str, Array] = {}
    for operand in wanted_inputs(case.problem):
        buffer = new_buffer(case, operand, memory)
        view = operand_view(case, operand, buffer, memory)
        values = memory.xp.empty(view.size, view.dtype)
        dtype, stream = operand_dtype(case.problem, operand), INPUTS.index(operand)
        fill_random(memory.xp, values, dtype, case.seed, stream, integers_of(case, operand))
        if view.size:
            view[...] = values.reshape(view.shape)
        inputs[operand], arrays[operand] = buffer, as_matrix(case, operand, view)
    parts = parts_of(memory.xp, case, arrays, most_flops=most_flops)
    return DeviceCase(case, inputs, parts, {name: buffer.checksum() for name, buffer in inputs.items()})


def copy_inputs(prepared: DeviceCase, name: str, memory: DeviceMemory) -> DeviceCase:
    """The same numbers at other addresses: one more set for runs on a cold cache."""
    case = replace(prepared.case, name=name)
    inputs = {}
    for operand, source in prepared.inputs.items():
        inputs[operand] = new_buffer(case, operand, memory)
        inputs[operand].data()[...] = source.data()
    return DeviceCase(case, inputs, prepared.parts, prepared.checksums)


class DeviceTarget:
    """What a run may write: out and workspace of one case, poisoned; and the kernel bound to them."""

    def __init__(
        self, kernel: Launchable, prepared: DeviceCase, memory: DeviceMemory, workspace: DeviceBuffer | None
    ) -> None:
        self.kernel = kernel
        self.prepared = prepared
        self.memory = memory
        self.workspace = workspace
        self.out = new_buffer(prepared.case, "out", memory)
        self.dtype = operand_dtype(prepared.case.problem, "out")
        self.runs = 0
        self.poison()
        case = prepared.case
        pointers = {name: buffer.base for name, buffer in prepared.inputs.items()} | {"out": self.out.base}
        if case.out_is_c:
            pointers["c"] = self.out.base
        if workspace is not None:
            pointers["workspace"] = workspace.base
        # What is timed is what a program's call does, but for the checks of its arguments.
        self.launch = kernel.prepare(case.names(), pointers, {"alpha": case.alpha, "beta": case.beta}).run

    def output(self) -> Array:
        """The result as words, in its own shape and pitch."""
        return operand_view(self.prepared.case, "out", self.out, self.memory)

    def poison(self) -> None:
        """Make every byte that may be written tell whether it was; counts runs anew."""
        self.runs = 0
        self.out.poison()
        if self.prepared.case.out_is_c:
            source = self.prepared.inputs["c"]
            self.output()[...] = operand_view(self.prepared.case, "c", source, self.memory)
        if self.workspace is not None:
            self.workspace.poison()

    def run_once(self) -> None:
        """Enqueue one run; this is what is timed."""
        self.runs += 1
        self.launch()

    def run(self) -> float:
        """One run to its end; its time in microseconds, with everything around it."""
        self.memory.synchronize()
        start = time.perf_counter_ns()
        self.run_once()
        self.memory.synchronize()
        return (time.perf_counter_ns() - start) / 1000.0

    # -- judging ----------------------------------------------------------------------------------------

    def check(self) -> Comparison:
        """Raise VerifyFailure for what the last run did wrong."""
        found = self.compare()
        # A write outside is the graver news: it says more than the wrong numbers it may have caused.
        self.check_margins()
        if found.problem is not None:
            raise VerifyFailure(found.problem, {**found.evidence, "on": self.prepared.case.to_json()})
        return found

    def compare(self) -> Comparison:
        """The worst of what the parts say, after a look at every element for poison and NaN."""
        xp = self.memory.xp
        output = as_matrix(self.prepared.case, "out", self.output())
        if output.size == 0:
            return Comparison(None, 0.0, 0.0, {})
        odd = self._unwritten(output)
        if odd is None and not self.prepared.whole:
            odd = self._not_finite(output)
        if odd is not None:
            return odd
        found = []
        for part in self.prepared.parts:
            words = output[part.index] if part.index else output
            got = xp.ascontiguousarray(decode(xp, xp.ascontiguousarray(words), self.dtype))
            found.append(compare(got, part.reference, part.bound))
        return max(found, key=lambda one: (one.problem is not None, one.max_error))

    def _unwritten(self, output: Array) -> Comparison | None:
        word = poison_word(self.dtype)
        return self._scan(
            output, lambda words: unsigned(words) == word, "not_written", "elements were not written"
        )

    def _not_finite(self, output: Array) -> Comparison | None:
        xp = self.memory.xp
        if storage(self.dtype).kind in "iu" and self.dtype in ("s8", "u8", "s32"):
            return None
        return self._scan(
            output,
            lambda words: ~xp.isfinite(decode(xp, words, self.dtype)),
            "nan_result",
            "elements are NaN or infinite",
        )

    def _scan(
        self, output: Array, odd: Callable[[Array], Array], problem: str, says: str
    ) -> Comparison | None:
        """Look at every element, some rows at a time."""
        xp = self.memory.xp
        flat = output.reshape(-1, output.shape[-1]) if output.ndim == 2 else None
        blocks = [flat] if flat is not None else list(output)
        count, first = 0, None
        for batch, block in enumerate(blocks):
            step = max(1, CHUNK // max(1, block.shape[1]))
            for low in range(0, block.shape[0], step):
                mask = odd(xp.ascontiguousarray(block[low : low + step]))
                here = int(xp.count_nonzero(mask))
                if here and first is None:
                    row, column = divmod(int(xp.argmax(mask)), block.shape[1])
                    first = [low + row, column] if flat is not None else [batch, low + row, column]
                count += here
        if first is None:
            return None
        message = f"{count} of {output.size} {says}, the first at {first}"
        evidence = {"message": message, "count": count, "of": output.size, "first": first}
        return Comparison(problem, float("inf"), float("inf"), evidence)

    def check_margins(self) -> None:
        """Nothing around the outputs, between their rows, or in the inputs' margins may have been written."""
        written = [self.out] if self.workspace is None else [self.out, self.workspace]
        for buffer in (*written, *self.prepared.inputs.values()):
            found = buffer.touched()
            if found is not None:
                where, off = found
                words = "past the end of" if where == "past" else "before the start of"
                sign = "+" if where == "past" else "-"
                raise self._outside(
                    f"wrote {words} {buffer.region.name}, at {sign}{off} bytes", buffer, words, off
                )
        self._check_gaps()

    def _outside(self, message: str, buffer: DeviceBuffer, where: str, off: int) -> VerifyFailure:
        return VerifyFailure(
            "out_of_bounds",
            {
                "message": message,
                "buffer": buffer.region.name,
                "where": where,
                "offset_bytes": off,
                "access": "write",
                "on": self.prepared.case.to_json(),
            },
        )

    def _check_gaps(self) -> None:
        """Between the rows of a pitched output nothing may be written either."""
        output = self.output()
        item = output.dtype.itemsize
        if output.size == 0 or self.out.nbytes == output.size * item:
            return
        xp = self.memory.xp
        flat = unsigned(self.out.data().view(storage(self.dtype))) != poison_word(self.dtype)
        inside = xp.zeros(flat.shape, np.bool_)
        strides = tuple(stride // item for stride in output.strides)
        xp.lib.stride_tricks.as_strided(inside, output.shape, strides)[...] = True
        stray = flat & ~inside
        if bool(stray.any()):
            at = int(xp.argmax(stray)) * item
            message = f"wrote between the rows of out, {at} bytes from its start"
            raise self._outside(message, self.out, "between the rows of", at)


def new_workspace(nbytes: int, memory: DeviceMemory) -> DeviceBuffer:
    """Scratch memory as the launcher would give it."""
    return DeviceBuffer(memory, "workspace", nbytes, "f32", align=WORKSPACE_ALIGN)


def workspace_bytes(kernel: Launchable, case: Case) -> int:
    """Scratch memory that the plan wants for a case."""
    if 0 in (case.problem.m, case.problem.n):
        return 0  # nothing is launched
    return evaluate(kernel.plan.workspace.bytes, {**kernel.machine_names(), **case.names()})


def skip_reason(kernel: Launchable, prepared: DeviceCase) -> str | None:
    """Why the plan is not for this case, or None."""
    names = {**kernel.machine_names(), **prepared.case.names()}
    align = {n: b.base & -b.base for n, b in prepared.inputs.items() if b.nbytes}
    return "; ".join(kernel.plan.check(names, align)) or None


def check_device_case(
    kernel: Launchable, prepared: DeviceCase, memory: DeviceMemory, announce: Announce, *, repeat: int = 0
) -> CheckResult:
    """Run a case and look at everything; `repeat` times more, and the results must be equal to the bit."""
    case, bound = prepared.case, prepared.bound.absolute
    reason = skip_reason(kernel, prepared)
    if reason is not None:
        return CheckResult(case, True, None, None, None, bound, skipped=reason)
    size = workspace_bytes(kernel, case)
    target = DeviceTarget(kernel, prepared, memory, new_workspace(size, memory) if size else None)
    announce(case)
    run_us = target.run()
    found = target.check()
    prepared.check_inputs()  # before a second run reads what the first may have spoilt
    first = memory.xp.ascontiguousarray(target.output()).copy() if repeat else None
    for number in range(repeat):
        # The workspace stays as the last run left it: a second call in a program meets it like that.
        dirty = target.workspace
        target.workspace = dirty if number == 0 else None
        target.poison()
        target.workspace = dirty
        announce(case)
        target.run()
        target.check()
        if kernel.plan.deterministic:
            _same(memory, first, target)
    prepared.check_inputs()
    return CheckResult(case, True, run_us, found.max_error, found.norm_error, bound)


def _same(memory: DeviceMemory, first: Array, target: DeviceTarget) -> None:
    again = memory.xp.ascontiguousarray(target.output())
    different = unsigned(first) != unsigned(again)
    if not bool(different.any()):
        return
    where = tuple(int(i) for i in np.unravel_index(int(memory.xp.argmax(different)), different.shape))
    count = int(memory.xp.count_nonzero(different))
    both = [float(decode(memory.xp, x, target.dtype)[where]) for x in (first, again)]
    message = f"{count} of {first.size} elements differ between two runs, the first at {list(where)}"
    raise VerifyFailure(
        "nondeterministic",
        {
            "message": message,
            "first": list(where),
            "count": count,
            "values": both,
            "on": target.prepared.case.to_json(),
        },
    )


# -- the checks themselves ------------------------------------------------------------------------------


class Oracle:
    """A "kernel" that puts the reference itself into the result, one element off where `spoilt`."""

    def __init__(self, prepared: DeviceCase, memory: DeviceMemory, *, spoilt: bool) -> None:
        self.plan = LaunchPlan(
            family="oracle",
            arch="sm_80",
            kind="cuda",
            entries=("oracle",),
            sizes=(),
            steps=(Launch("oracle", (), grid=(1, 1, 1), block=(1, 1, 1)),),
        )
        self._prepared, self._memory, self._spoilt = prepared, memory, spoilt
        self.target: DeviceTarget | None = None

    def machine_names(self) -> dict[str, int]:
        return {}

    def prepare(
        self,
        names: Mapping[str, int],
        pointers: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> Oracle:
        return self

    def run(self) -> None:
        """Write the result."""
        target = self.target
        assert target is not None
        xp, dtype = self._memory.xp, target.dtype
        out = as_matrix(self._prepared.case, "out", target.output())
        out[...] = encode(xp, xp.ones(1, np.float32), dtype)[0]
        for part in self._prepared.parts:
            values = part.reference.values
            wide = np.float64 if dtype in ("f64", "s32") else np.float32
            words = encode(xp, values.astype(wide), dtype)
            out[part.index if part.index else ...] = words
        if self._spoilt:
            # Far more than any bound: what was summed is of the size of sqrt(k).
            first = tuple(0 for _ in out.shape)
            off = encode(xp, xp.full(1, 0.0 if dtype == "u8" else 1e4, np.float32), dtype)
            out[first] = off[0]


def self_check(prepared: DeviceCase, memory: DeviceMemory) -> None:
    """The reference put into the result passes every check, and with one element off it does not.
    RuntimeError where it is otherwise: then no verdict of this device means anything."""
    dtype = operand_dtype(prepared.case.problem, "out")
    size = prepared.case.problem.m * prepared.case.problem.n
    if dtype in ("e4m3", "e5m2") or not size:
        return  # encode() is for numbers of at most 1 there
    for spoilt in (False, True):
        oracle = Oracle(prepared, memory, spoilt=spoilt)
        target = DeviceTarget(oracle, prepared, memory, None)
        oracle.target = target
        try:
            target.run()
            target.check()
            first = memory.xp.ascontiguousarray(target.output()).copy()
            _same(memory, first, target)
            prepared.check_inputs()
        except VerifyFailure as failure:
            if not spoilt or failure.reason not in ("wrong_result", "nan_result"):
                raise RuntimeError(f"the checks refuse the reference itself: {failure}") from None
            continue
        if spoilt:
            raise RuntimeError("the checks do not see a wrong element")
