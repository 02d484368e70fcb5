"""Is one candidate right on one prepared case, and if not, what exactly is wrong?

Runs in the candidate's own process. Before each run everything it may write is poisoned; afterwards each
output element must have been written and be within its bound, and nothing else may have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rooftile.launch.x86 import X86Kernel
from rooftile.plan import evaluate
from rooftile.problem import operand_dtype

from worker.verify.arena import HUGE_PAGE_BYTES, GuardedBuffer, Region
from worker.verify.bounds import Comparison, compare, compare_written
from worker.verify.cases import Case
from worker.verify.elements import element_dtype
from worker.verify.poison import fill_bytes, first_touched, pattern, words
from worker.verify.prepared import PreparedCase, as_matrix, new_buffer, strided

Array = npt.NDArray[Any]
Announce = Callable[[Iterable[Region]], None]

WORKSPACE_ALIGN = 64


class VerifyFailure(Exception):  # an outcome
    """What is wrong: a TrialReason's text and the evidence."""

    def __init__(self, reason: str, evidence: Mapping[str, Any]) -> None:
        super().__init__(str(evidence.get("message", reason)))
        self.reason = reason
        self.evidence = dict(evidence)


@dataclass(frozen=True)
class CheckResult:
    """One case that passed (or was skipped, with the reasons)."""

    case: Case
    passed: bool
    run_us: float | None
    max_error: float | None
    norm_error: float | None
    bound: float
    skipped: str | None = None

    def to_json(self) -> dict[str, Any]:
        fields = self.case.to_json()
        fields |= {"passed": self.passed, "bound": self.bound}
        if self.skipped is not None:
            return fields | {"skipped": self.skipped}
        return fields | {"run_us": self.run_us, "max_error": self.max_error, "norm_error": self.norm_error}


class Target:
    """What a run may write: out and workspace of one case, poisoned; `launch` is set by whoever binds it."""

    def __init__(
        self, prepared: PreparedCase, announce: Announce, workspace: GuardedBuffer | None = None
    ) -> None:
        self.prepared = prepared
        self.workspace = workspace
        self.out = new_buffer(prepared.case, "out")
        self.kind = element_dtype(operand_dtype(prepared.case.problem, "out"))
        self.launch: Callable[[], object] = _not_bound
        self.poison()
        self._announce = announce
        regions = [self.out.region, *(buffer.region for buffer in prepared.inputs.values())]
        if workspace is not None:
            regions.append(workspace.region)
        self.regions = regions
        self.announce()

    def announce(self) -> None:
        """Tell where the buffers lie, and that a run comes now."""
        self._announce(self.regions)

    def output(self) -> Array:
        return strided(self.prepared.case, "out", self.out.data())

    def poison(self) -> None:
        """Make every byte that may be written tell whether it was; counts runs anew."""
        self.runs = 0
        fill_bytes(self.out.body(), self.kind, self.out.region.body)
        if self.prepared.case.out_is_c:
            source = self.prepared.inputs["c"]
            self.output()[...] = strided(self.prepared.case, "c", source.data())
        if self.workspace is not None:
            fill_bytes(self.workspace.body(), np.float32, self.workspace.region.body)

    def run_once(self) -> None:
        """One run; this is what is timed."""
        self.runs += 1
        self.launch()

    def run(self) -> float:
        """One run; its time in microseconds."""
        start = time.perf_counter_ns()
        self.run_once()
        return (time.perf_counter_ns() - start) / 1000.0

    def compare(self) -> Comparison:
        """The worst of what the parts say; a sampled result is searched as a whole for poison and NaN."""
        prepared = self.prepared
        output = as_matrix(prepared.case, "out", self.output())
        if not prepared.whole:
            odd = compare_written(output)
            if odd is not None:
                return odd
        found = [
            compare(np.ascontiguousarray(output[part.index]), part.reference, part.bound)
            for part in prepared.parts
        ]
        return max(found, key=lambda one: (one.problem is not None, one.max_error))

    def check(self) -> Comparison:
        """Raise VerifyFailure for what the last run did wrong."""
        found = self.compare()
        case = self.prepared.case.to_json()
        # A write outside is the graver news: it says more than the wrong numbers it may have caused.
        self.check_margins()
        if found.problem is not None:
            raise VerifyFailure(found.problem, {**found.evidence, "on": case})
        return found

    def check_margins(self) -> None:
        for buffer, kind in self._written():
            before, after = buffer.margins()
            region = buffer.region
            end = region.base + region.nbytes
            touched = first_touched(after, kind, end)
            if touched is not None:
                raise self._outside(region, touched, "past the end of")
            touched = first_touched(before, kind, region.body)
            if touched is not None:
                raise self._outside(region, before.size - touched, "before the start of")
        self._check_gaps()

    def _written(self) -> list[tuple[GuardedBuffer, Any]]:
        written: list[tuple[GuardedBuffer, Any]] = [(self.out, self.kind)]
        if self.workspace is not None:
            written.append((self.workspace, np.dtype(np.float32)))
        return written

    def _check_gaps(self) -> None:
        """Between the rows of a pitched output nothing may be written either."""
        case = self.prepared.case
        output = self.output()
        if output.size == 0 or self.out.nbytes == output.nbytes:
            return
        flat = words(self.out.data().view(self.kind)) != pattern(self.kind)
        inside = np.zeros(flat.shape, np.bool_)
        rows_view = np.lib.stride_tricks.as_strided(
            inside, output.shape, tuple(stride // self.kind.itemsize for stride in output.strides)
        )
        rows_view[...] = True
        stray = flat & ~inside
        if stray.any():
            at = int(np.argmax(stray)) * self.kind.itemsize
            raise VerifyFailure(
                "out_of_bounds",
                {
                    "message": f"wrote between the rows of out, {at} bytes from its start",
                    "buffer": "out",
                    "where": "between the rows of",
                    "offset_bytes": at,
                    "access": "write",
                    "on": case.to_json(),
                },
            )

    def _outside(self, region: Region, bytes_off: int, where: str) -> VerifyFailure:
        sign = "-" if where.startswith("before") else "+"
        return VerifyFailure(
            "out_of_bounds",
            {
                "message": f"wrote {where} {region.name}, at {sign}{bytes_off} bytes",
                "buffer": region.name,
                "where": where,
                "offset_bytes": bytes_off,
                "access": "write",
                "on": self.prepared.case.to_json(),
            },
        )

    def close(self) -> None:
        self.out.close()


def bind_kernel(kernel: X86Kernel, target: Target) -> None:
    """Make `target.launch` a run of the kernel, through the client's launcher."""
    case = target.prepared.case
    pointers = {**target.prepared.addresses(), "out": target.out.base}
    if case.out_is_c:
        pointers["c"] = target.out.base
    if target.workspace is not None:
        pointers["workspace"] = target.workspace.base
    target.launch = kernel.prepare(
        plan_names(kernel, case), pointers, {"alpha": case.alpha, "beta": case.beta}
    ).run


def plan_names(kernel: X86Kernel, case: Case) -> dict[str, int]:
    """The names of a case, with those of the machine."""
    return {**case.names(), "threads": kernel.pool.threads, "sm_count": 0}


def workspace_bytes(kernel: X86Kernel, case: Case) -> int:
    """Scratch memory that the plan wants for a case."""
    if 0 in (case.problem.m, case.problem.n):
        return 0  # nothing is launched
    return evaluate(kernel.plan.workspace.bytes, plan_names(kernel, case))


def _not_bound() -> None:
    raise RuntimeError("a target was run before it was bound")


def new_workspace(nbytes: int, placement: str = "end") -> GuardedBuffer:
    """Scratch memory as the launcher would give it: on a cache line, in huge pages from 2 MiB on."""
    return GuardedBuffer(
        "workspace",
        nbytes,
        placement=placement,
        offset=0,
        align=WORKSPACE_ALIGN,
        huge_from_bytes=HUGE_PAGE_BYTES,
    )


def skip_reason(kernel: X86Kernel, prepared: PreparedCase) -> str | None:
    """Why the plan is not for this case, or None."""
    names = plan_names(kernel, prepared.case)
    align = {name: address & -address for name, address in prepared.addresses().items() if address}
    return "; ".join(kernel.plan.check(names, align)) or None


def check_case(
    kernel: X86Kernel, prepared: PreparedCase, announce: Announce, *, repeat: bool = False
) -> CheckResult:
    """Run a case and look at everything. With `repeat` twice, and the results must be equal to the bit."""
    case = prepared.case
    bound = prepared.bound.absolute
    reason = skip_reason(kernel, prepared)
    if reason is not None:
        return CheckResult(case, True, None, None, None, bound, skipped=reason)
    size = workspace_bytes(kernel, case)
    target = Target(prepared, announce, new_workspace(size) if size else None)
    bind_kernel(kernel, target)
    try:
        run_us = target.run()
        found = target.check()
        if repeat:
            _repeat(kernel, target)
        return CheckResult(case, True, run_us, found.max_error, found.norm_error, bound)
    finally:
        target.close()


def _repeat(kernel: X86Kernel, target: Target) -> None:
    first = target.output().copy()
    target.poison()
    target.announce()
    target.run()
    target.check()
    if not kernel.plan.deterministic:
        return
    different = words(first) != words(np.ascontiguousarray(target.output()))
    if different.any():
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(different)), different.shape))
        count = int(np.count_nonzero(different))
        raise VerifyFailure(
            "nondeterministic",
            {
                "message": (
                    f"{count} of {first.size} elements differ between two runs, the first at {list(where)}"
                ),
                "first": list(where),
                "count": count,
                "values": [float(first[where]), float(target.output()[where])],
                "on": target.prepared.case.to_json(),
            },
        )
