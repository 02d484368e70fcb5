"""One CUDA template whose define FAULT chooses what is wrong with it, and a family of such kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from search_space import registry
from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Parameter
from search_space.schedule import Schedule, Value
from search_space.violation import Violation

SOURCE = "cuda/gemm/planted.cu"
ARCH = "sm_80"
NAME = "planted_sm80"

# 300,000 steps of a dependent chain, unrolled: NVRTC 13.5 is at it for minutes, in little memory.
_ENDLESS = """
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];
#pragma unroll
    for (int k = 0; k < 20000; k++)
#pragma unroll
        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + k) % 64] + x[k * n + i];
    for (int i = 0; i < 64; i++) x[i * n + threadIdx.x] = a[i];
"""
# Four million classes, each with a name: gigabytes within seconds.
_HUNGRY_BEFORE = """
template <int D, unsigned K> struct Tree {
    static constexpr unsigned value = Tree<D - 1, 2 * K>::value + Tree<D - 1, 2 * K + 1>::value;
};
template <unsigned K> struct Tree<0, K> { static constexpr unsigned value = K; };
"""
# The parser recurses for each: it runs off the end of its stack.
_NESTED = "x[0] = " + "(" * 100_000 + "1" + ")" * 100_000 + ";"
_SPILLS = """
    float a[96];
#pragma unroll
    for (int i = 0; i < 96; i++) a[i] = x[i * n + threadIdx.x];
    for (int k = 0; k < n; k++)
#pragma unroll
        for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i + 5) % 96] + 1.0f;
#pragma unroll
    for (int i = 0; i < 96; i++) x[i * n + threadIdx.x] = a[i];
"""

FAULTS: dict[str, tuple[str, str]] = {
    "good": ("", "x[threadIdx.x] = twice(x[threadIdx.x]);"),
    "shared": (
        "",
        "__shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads();"
        " x[threadIdx.x] = s[63 - threadIdx.x];",
    ),
    "does not compile": ("", "this is not C++;"),
    "takes for ever": ("", _ENDLESS),
    "eats memory": (_HUNGRY_BEFORE, "x[0] = Tree<21, 1>::value;"),
    "crashes": ("", _NESTED),
    "spills": ("", _SPILLS),
    "too much shared": ("", "__shared__ float s[20000]; s[n] = 1; __syncthreads(); x[0] = s[n + 1];"),
    "no entry": ("#define gemm other\n", "x[0] = 1.0f;"),
    "entry in a namespace": ("", "x[0] = 1.0f;"),
}
KINDS = tuple(FAULTS)

HEADER = """#pragma once
#include "one.cuh"
// Line 3 of the header.
__device__ __forceinline__ float twice(float v) { return one() * (v + v); }
"""
INNER = """#pragma once
__device__ __forceinline__ float one() { return 1.0f; }
"""


def template() -> str:
    """The text of the template."""
    parts = [
        '#include "ptx/twice.cuh"',
        "#include <ptx/one.cuh>",
        "#ifndef BOUND",
        "#define BOUND 64",
        "#endif",
    ]
    for number, (before, body) in enumerate(FAULTS.values()):
        bound = "1024" if KINDS[number] == "spills" else "BOUND"
        linkage = "namespace hidden {" if KINDS[number] == "entry in a namespace" else 'extern "C" {'
        parts += [
            f"#if FAULT == {number}",
            before.strip("\n"),
            f"{linkage} __global__ void __launch_bounds__({bound}) gemm(float *x, int n) {{",
            body.strip("\n"),
            "} }",
            "#endif",
        ]
    return "\n".join(parts) + "\n"


def write_cuda_template(root: Path, text: str | None = None) -> Path:
    """A kernels/ folder with the template and its two headers; returns it."""
    include = root / "cuda" / "include" / "ptx"
    include.mkdir(parents=True)
    (include / "twice.cuh").write_text(HEADER)
    (include / "one.cuh").write_text(INNER)
    source = root / SOURCE
    source.parent.mkdir(parents=True)
    source.write_text(template() if text is None else text)
    return root


def spec(kind: str = "good", arch: str = ARCH, number: int = 0, flags: tuple[str, ...] = ()) -> BuildSpec:
    """What to compile; `number` makes it another recipe with the same code."""
    defines = (("FAULT", str(KINDS.index(kind))), ("NUMBER", str(number)))
    return BuildSpec(SOURCE, arch, defines, flags, ("gemm",))


class PlantedCudaFamily:
    """A family whose schedules differ in what is wrong with them."""

    name = NAME
    version = 1

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        return []

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        return (Parameter("fault", "tile", KINDS), Parameter("number", "order", tuple(range(64))))

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
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
        return spec(schedule.text("fault"), device.arch.name, schedule.integer("number"))

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        return LaunchPlan.from_json(
            {
                "schema": 1,
                "family": NAME,
                "arch": device.arch.name,
                "kind": "cuda",
                "entries": ["gemm"],
                "sizes": ["m", "n", "k", "batch"],
                "workspace": {"bytes": 0, "init": "none"},
                "steps": [
                    {
                        "op": "launch",
                        "entry": "gemm",
                        "grid": [1, 1, 1],
                        "block": [64, 1, 1],
                        "args": [
                            {"name": "out", "type": "ptr", "buffer": "out"},
                            {"name": "n", "type": "i32", "value": "n"},
                        ],
                    }
                ],
            }
        )

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        return {"fault": schedule.text("fault")}


FAMILY = PlantedCudaFamily()


@contextmanager
def also_planted_cuda() -> Iterator[PlantedCudaFamily]:
    """One family more in this process while the block runs."""
    registry._MODULES[NAME] = __name__
    registry._OP_OF[NAME] = "gemm"
    registry.get_family.cache_clear()
    try:
        yield FAMILY
    finally:
        registry._MODULES.pop(NAME, None)
        registry._OP_OF.pop(NAME, None)
        registry.get_family.cache_clear()
