"""A right GEMM in C with holes for faults: what verification, timing and the worker loops are tested with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rooftile.plan import Arg, Launch, LaunchPlan, SizeRange, ValidFor, Workspace
from rooftile.problem import Problem

from search_space import registry
from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Parameter
from search_space.schedule import Schedule
from search_space.violation import Violation
from service.paths import kernels_dir
from worker.compile import Artifact

SOURCE = "x86/planted.c"
SIZES = ("m", "n", "k", "batch", "ld_a", "ld_b", "ld_out", "stride_a", "stride_b", "stride_out")

# BEFORE runs first on every thread, EACH at the start of a row, LAST at its end, AFTER at the very end.
TEMPLATE = """
#include "rooftile_abi.h"
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
struct args {
    const float *a, *b; float *out; float *workspace;
    int64_t m, n, k, batch, ld_a, ld_b, ld_out, stride_a, stride_b, stride_out;
    float alpha;
};
static volatile float sink;
RT_EXPORT void run(const void *packed, int thread, int threads, rt_barrier *barrier)
{
    const struct args *p = packed;
    int64_t m = p->m, n = p->n, k = p->k;
    int64_t rows_from = m * thread / threads, rows_to = m * (thread + 1) / threads;
    static __thread long calls;
    calls++; (void)barrier; (void)sink;
    @before@
    for (int64_t batch = 0; batch < p->batch; batch++) {
        const float *a = p->a + batch * p->stride_a, *b = p->b + batch * p->stride_b;
        float *out = p->out + batch * p->stride_out;
        for (int64_t i = rows_from; i < rows_to; i++) {
            float *row = out + i * p->ld_out;
            @each@
            for (int64_t j = 0; j < n; j++)
                row[j] = 0.0f;
            for (int64_t l = 0; l < k; l++) {
                float x = p->alpha * a[i * p->ld_a + l];
                const float *from = b + l * p->ld_b;
                for (int64_t j = 0; j < n; j++)
                    row[j] += x * from[j];
            }
            @last@
        }
    }
    @after@
}
"""


@dataclass(frozen=True)
class Fault:
    """What goes into the holes, and what must come of it."""

    reason: str
    holes: Mapping[str, str]
    says: str = ""


_END = "p->out[(p->batch - 1) * p->stride_out + (m - 1) * p->ld_out + n"
_LAST_THREAD = "if (thread == threads - 1)"

FAULTS: dict[str, Fault] = {
    "wrong value": Fault("wrong_result", {"last": "if (i == 3) row[5] += 0.01f;"}, "[3, 5]"),
    "drops a k": Fault(
        "wrong_result",
        {"last": "if (k > 1) row[0] -= p->alpha * a[i * p->ld_a + k - 1] * b[(k - 1) * p->ld_b];"},
    ),
    "half of k": Fault("wrong_result", {"before": "k /= 2;"}),
    "swaps rows": Fault("wrong_result", {"each": "if (m > 1) row = out + (m - 1 - i) * p->ld_out;"}),
    "wrong at ragged n": Fault("wrong_result", {"last": "if (n % 16) row[n - 1] = 1.0f;"}),
    "NaN everywhere": Fault("nan_result", {"last": "for (int64_t j = 0; j < n; j++) row[j] = NAN;"}),
    "one infinity": Fault("nan_result", {"last": "if (i == m - 1) row[n - 1] = INFINITY;"}),
    "computes nothing": Fault("not_written", {"before": "return;"}, "4096 of 4096"),
    "half the rows": Fault("not_written", {"each": "if (i >= (m + 1) / 2) continue;"}, "[4, 0]"),
    "not the last column": Fault("not_written", {"before": "n -= 1;"}),
    "reads the output": Fault("nan_result", {"each": "float old = row[0];", "last": "row[0] += 0.0f * old;"}),
    "reads the workspace": Fault("nan_result", {"last": "row[0] += 0.0f * p->workspace[thread];"}),
    "1 MiB past out": Fault(
        "out_of_bounds",
        {"after": f"{_LAST_THREAD} {_END} + (1 << 18)] = 1.0f;"},
        "past the end of out, at +1048576",
    ),
    "4 bytes past out": Fault(
        "out_of_bounds", {"after": f"{_LAST_THREAD} {_END}] = 1.0f;"}, "past the end of out, at +0"
    ),
    "before out": Fault(
        "out_of_bounds", {"after": "if (thread == 0) p->out[-1] = 1.0f;"}, "before the start of out, at -4"
    ),
    "between rows": Fault(
        "out_of_bounds",
        {"after": "if (thread == 0 && p->ld_out > n && m > 1) p->out[n] = 1.0f;"},
        "between the rows",
    ),
    "past the workspace": Fault(
        "out_of_bounds", {"after": "if (thread == 0) p->workspace[1024] = 1.0f;"}, "past the end of workspace"
    ),
    "reads past A": Fault(
        "out_of_bounds",
        {"before": "sink = p->a[(p->batch - 1) * p->stride_a + (m - 1) * p->ld_a + k];"},
        "read past the end of a",
    ),
    "reads before B": Fault("out_of_bounds", {"before": "sink = p->b[-1030];"}, "read before the start of b"),
    "writes to A": Fault("out_of_bounds", {"before": "((float *)p->a)[0] = 1.0f;"}, "read-only a"),
    "null pointer": Fault("crash", {"before": "*(volatile int *)8 = 1;"}, "SIGSEGV"),
    "illegal instruction": Fault("crash", {"before": "__builtin_trap();"}, "SIGILL"),
    "division by zero": Fault("crash", {"before": "volatile int z = 0; sink = (float)(7 / z);"}, "SIGFPE"),
    "stack overflow": Fault(
        "crash", {"before": "volatile char big[64 << 20]; big[0] = 1; big[sizeof big / 2] = 1;"}, "SIGSEGV"
    ),
    "exits": Fault("crash", {"before": "_exit(0);"}, "status 0"),
    "kills itself": Fault("crash", {"before": "kill(getpid(), SIGKILL);"}, "SIGKILL"),
    "prints": Fault(
        "", {"before": 'if (calls < 3) { ssize_t w = write(1, "{}\\n", 3); w = write(0, "x", 1); (void)w; }'}
    ),
    "stops after a while": Fault("not_written", {"before": "if (calls > 25) return;"}),
    "every other call": Fault("not_written", {"before": "if (calls % 2 == 0) return;"}),
    "differs from run to run": Fault(
        "nondeterministic", {"last": "if (i == 0 && k == 512) row[0] += 4e-6f * (float)(calls % 3);"}
    ),
}


def source(holes: Mapping[str, str] | None = None) -> str:
    """The template with its holes filled."""
    text = TEMPLATE
    for name in ("before", "each", "last", "after"):
        text = text.replace(f"@{name}@", (holes or {}).get(name, ""))
    return text


def write_template(root: Path, text: str) -> None:
    """A kernels/ folder with one template and the real ABI header."""
    include = root / "x86" / "include"
    include.mkdir(parents=True)
    header = "rooftile_abi.h"
    (include / header).write_text((kernels_dir() / "x86" / "include" / header).read_text())
    (root / SOURCE).write_text(text)


def plan(
    arch: str, *, deterministic: bool = True, workspace_bytes: int = 4096, m: SizeRange | None = None
) -> LaunchPlan:
    """How planted kernels are run."""
    pointers = tuple(Arg.ptr(name) for name in ("a", "b", "out", "workspace"))
    numbers = tuple(Arg.i64(name) for name in SIZES)
    return LaunchPlan(
        family=NAME,
        arch=arch,
        kind="x86",
        entries=("run",),
        sizes=SIZES,
        steps=(Launch("run", (*pointers, *numbers, Arg.f32("alpha")), threads="threads"),),
        workspace=Workspace(workspace_bytes),
        deterministic=deterministic,
        valid_for=ValidFor({} if m is None else {"m": m}, {"a": 4, "b": 4, "out": 4}),
    )


@dataclass(frozen=True)
class Built:
    """A planted kernel, ready for a session."""

    artifact: Artifact
    so_path: Path
    plan: LaunchPlan


NAME = "planted_x86"
KINDS = (
    "good",
    "slow",
    "wrong value",
    "null pointer",
    "computes nothing",
    "hang",
    "refused",
    "does not compile",
)
_HOLES: dict[str, Mapping[str, str]] = {
    "good": {},
    "slow": {"before": "for (volatile long w = 0; w < 3000000; w++) {}"},
    "hang": {"before": 'if (thread == 0) for (;;) __asm__ volatile("pause");'},
    "does not compile": {"before": "not C at all;"},
    "refused": {},
}


class PlantedFamily:
    """A family whose schedules differ in what is wrong with them; `root` is its kernels/ folder."""

    name = NAME
    version = 1

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        return []

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        return (Parameter("fault", "tile", KINDS), Parameter("number", "order", tuple(range(64))))

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        if schedule.text("fault") == "refused":
            return [Violation("fault", "this one is refused", {"fault": "refused"})]
        return []

    def make(self, problem: Problem, device: Device, fault: str, number: int = 0) -> Schedule:
        return Schedule.of(NAME, self.parameters(problem, device), {"fault": fault, "number": number})

    def default(self, problem: Problem, device: Device) -> Schedule:
        return self.make(problem, device, "good")

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        return [self.default(problem, device)]

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        return Estimate(1000.0, "compute")

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        defines = (
            ("FAULT", str(KINDS.index(schedule.text("fault")))),
            ("NUMBER", str(schedule.integer("number"))),
        )
        return BuildSpec(SOURCE, device.arch.name, defines)

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        return plan(device.arch.name)


def family_source() -> str:
    """One template for all kinds: `FAULT` chooses what goes into the holes."""
    holes: dict[str, str] = dict.fromkeys(("before", "each", "last", "after"), "")
    for number, kind in enumerate(KINDS):
        fault = _HOLES[kind] if kind in _HOLES else FAULTS[kind].holes
        for name, text in fault.items():
            holes[name] += f"\n#if FAULT == {number}\n{text}\n#endif\n"
    return source(holes)


FAMILY = PlantedFamily()


@contextmanager
def only_family() -> Iterator[PlantedFamily]:
    """The only family of this process while the block runs."""
    modules, ops = dict(registry._MODULES), dict(registry._OP_OF)
    registry._MODULES.clear()
    registry._MODULES[NAME] = __name__
    registry._OP_OF.clear()
    registry._OP_OF[NAME] = "gemm"
    registry.get_family.cache_clear()
    try:
        yield FAMILY
    finally:
        registry._MODULES.clear()
        registry._MODULES.update(modules)
        registry._OP_OF.clear()
        registry._OP_OF.update(ops)
        registry.get_family.cache_clear()
