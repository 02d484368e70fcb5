"""Does the machine end, and with its own errors only, whatever PTX and plan it is given?

Real kernels, compiled from our sources, are changed in one to three places: operands exchanged, modifiers and
immediates changed, registers renumbered, instructions left out, repeated or moved, labels moved. Most of it
no longer makes sense; all of it must end in an EmulatorError or a Report."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rooftile.plan import Arg, Launch, LaunchPlan
from rooftile.problem import Gemm
from support.instructions import text_kernel

from bench.mutations.gemm_sm90 import ONE as MUTATED
from emulator import EmulatorError, FaultKind, Limits, Operand, Order, Program, Report, run_plan
from search_space.device import Device
from search_space.registry import get_family
from worker.compile import compile_kernel
from worker.verify.proof_cases import proof_case

LIMITS = Limits(instructions=20_000, seconds=4.0)
WORDS = """
u32 s32 b32 u64 s64 b64 f32 f16 bf16 f16x2 b16 u8 pred v2 v4 shared global local const param sync aligned
trans x1 x2 x4 row col wide lo hi ftz sat rn rz approx ca cg idx bfly add exch acquire release volatile gpu
eq lt and or cc nothing mbarrier try_wait parity arrive expect_tx init cluster release.cluster shared::cta
shared::cluster bulk bulk_group tensor 2d multicast::cluster mbarrier::complete_tx::bytes wgmma mma_async
fence commit_group wait_group read m64n64k16 m64n8k16 inc dec async proxy wmma mma load store a b c m16n16k16
m8n32k16
"""
MATRIX = r"mma|matrix|mbarrier|cp\.|fence|setmaxnreg|bar|elect|mapa"
"""Instructions that a kernel is about: every other change is to one of them."""
NUMBERS = """
0 1 -1 3 16 31 32 64 128 4096 65535 2147483647 -2147483648 4294967295 9223372036854775807 0f3F800000
0f7FC00000 0d3FF0000000000000 1.5
"""


class Kernel:
    """A compiled kernel with what it takes to run it."""

    def __init__(self, name: str, arch: str, dtype: str, home: Path, **values: Any) -> None:
        family, device = get_family(name), Device.for_arch(arch)
        layout = {"a": "mk", "b": "nk"} if name == "gemm_sm90" else {"a": "mk", "b": "kn"}
        problem = Gemm(64, 64, 96, dtype, layout=layout, alpha="any", beta="any")
        schedule = family.default(problem, device).replace(**values)
        assert not family.check(problem, device, schedule)
        made = compile_kernel(family.build(problem, device, schedule), home=home)
        assert made.ptx is not None
        self.text = made.ptx.rstrip(b"\0").decode()
        self.lines = self.text.split("\n")
        self.plan = family.plan(problem, device, schedule)
        self.type: Any = ml_dtypes.bfloat16 if dtype == "bf16" else np.float16
        self.b_shape = (64, 96) if name == "gemm_sm90" else (96, 64)
        self.sizes = proof_case(problem, 0, 0).names()
        self.whole = [
            i for i, line in enumerate(self.lines) if line.startswith("\t") and line.rstrip().endswith(";")
        ]
        self.whole = [i for i in self.whole if not self.lines[i].lstrip().startswith(".")]
        self.matrix = [i for i in self.whole if re.search(MATRIX, self.lines[i])]

    def run(self, text: str, order: Order, plan: LaunchPlan | None = None, sizes: Any = None) -> Report:
        """Small matrices of ones."""
        kind = self.type
        arrays = {
            "a": np.ones((64, 96), kind), "b": np.ones(self.b_shape, kind), "c": np.ones((64, 64), kind),
            "out": np.zeros((64, 64), kind),
        }  # fmt: skip
        plan = plan or self.plan
        return run_plan(
            Program.from_ptx(text), plan, sizes or self.sizes, arrays, {"alpha": 1.0, "beta": 0.5},
            order=order, limits=LIMITS, stop_at_first=order.seed % 3 != 0,
        )  # fmt: skip


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    home = tmp_path_factory.mktemp("home")
    tile = {"bm": 64, "bn": 64, "bk": 32, "warps_m": 2, "warps_n": 2, "stages": 3}
    return [
        Kernel("gemm_sm80", "sm_80", "bf16", home, **tile),
        Kernel("gemm_sm80", "sm_80", "bf16", home, **tile, split_k=2, split_sum="last"),
    ]  # fmt: skip


@pytest.fixture(scope="session")
def volta(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    home = tmp_path_factory.mktemp("home")
    return Kernel("gemm_sm70", "sm_70", "f16", home, bm=64, bn=64, bk=32, warps_m=2, warps_n=2)


@pytest.fixture(scope="session")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    """Stores by TMA, and a cluster of two whose copies are multicast."""
    home = tmp_path_factory.mktemp("home")
    small = MUTATED | {"bm": 64, "bn": 32, "stages": 2}
    return [
        Kernel("gemm_sm90", "sm_90a", "bf16", home, **small | {"store": "tma"}),
        Kernel("gemm_sm90", "sm_90a", "bf16", home, **small | {"cluster_n": 2}),
    ]


def changed(kernel: Kernel, rng: Random) -> str:
    """The text with one to three changes."""
    lines = list(kernel.lines)
    for _ in range(rng.randint(1, 3)):
        i = rng.choice(kernel.whole if rng.random() < 0.5 else kernel.matrix)
        kind = rng.randrange(9)
        line = lines[i]
        if kind == 0:
            lines[i] = ""
        elif kind == 1:
            lines[i] = line + line
        elif kind == 2:
            j = rng.choice(kernel.whole)
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 3:
            lines[i] = _exchanged(line, rng)
        elif kind == 4:
            lines[i] = _another(line, r"\.[a-z]\w*", lambda m: "." + rng.choice(WORDS.split()), rng)
        elif kind == 5:
            lines[i] = _another(line, r"(?<![\w.%$])-?\d\w*", lambda m: rng.choice(NUMBERS.split()), rng)
        elif kind == 6:
            lines[i] = _another(line, r"(%[a-z]+)\d+", lambda m: f"{m[1]}{rng.randint(1, 40)}", rng)
        elif kind == 7:
            labels = [n for n, text in enumerate(lines) if re.fullmatch(r"\$\w+:", text.strip())]
            if labels:
                n = rng.choice(labels)
                label, lines[n] = lines[n], ""
                lines[i] = label + "\n" + lines[i]
        else:
            lines[i] = _another(
                line,
                r"%[a-z]+\d+",
                lambda m: rng.choice(("%tid.x", "%r1", "%rd2", "%p1", "_", "{%r1, %r2}")),
                rng,
            )
    return "\n".join(lines)


def _exchanged(line: str, rng: Random) -> str:
    head, _, rest = (
        line.partition(" \t") if " \t" in line else line.partition("\t" if "\t" in line[1:] else " ")
    )
    parts = rest.rstrip().rstrip(";").split(", ")
    if len(parts) > 1:
        i, j = rng.sample(range(len(parts)), 2)
        parts[i], parts[j] = parts[j], parts[i]
    return f"{head} {', '.join(parts)};"


def _another(line: str, pattern: str, make: Any, rng: Random) -> str:
    found = list(re.finditer(pattern, line))
    if not found:
        return line
    m = rng.choice(found)
    return line[: m.start()] + make(m) + line[m.end() :]


def attempt(kernel: Kernel, seed: int) -> str:
    """How a changed kernel ends, in a word; whatever else it raises is a failure."""
    rng = Random(seed)
    text = changed(kernel, rng)
    order = Order(rng.choice(Order.KINDS), seed)
    started = time.monotonic()
    try:
        report = kernel.run(text, order)
        ending = str(report.faults[0].kind) if report.faults else "clean"
    except EmulatorError as error:
        ending = "refused" if "PTX" in str(error) else "error"
    assert time.monotonic() - started < 30
    return ending


@pytest.mark.parametrize("part", range(4))
def test_changed_kernels_end_in_an_error_or_a_report(kernels: list[Kernel], part: int) -> None:
    endings = {attempt(kernels[seed % 2], seed) for seed in range(part * 12, part * 12 + 12)}
    assert len(endings) >= 3, endings  # the changes do something


def test_changed_kernels_of_volta_end_in_an_error_or_a_report(volta: Kernel) -> None:
    endings = {attempt(volta, seed) for seed in range(12)}
    assert len(endings) >= 3, endings


@pytest.mark.parametrize("number", range(2))
def test_changed_kernels_of_hopper_end_in_an_error_or_a_report(hopper: list[Kernel], number: int) -> None:
    endings = {attempt(hopper[number], seed) for seed in range(number * 12, number * 12 + 12)}
    assert len(endings) >= 3, endings


def test_the_unchanged_kernels_are_clean(
    kernels: list[Kernel], volta: Kernel, hopper: list[Kernel]
) -> None:
    for kernel in (*kernels, volta, *hopper):
        for kind in ("early", "late"):
            report = kernel.run(kernel.text, Order(kind))
            assert report.clean, report.faults


def moved(plan: LaunchPlan, **fields: Any) -> LaunchPlan:
    step = plan.steps[-1]
    assert isinstance(step, Launch)
    return replace(plan, steps=(*plan.steps[:-1], replace(step, **fields)))


def test_plans_that_do_not_fit_the_kernel_are_refused(kernels: list[Kernel]) -> None:
    kernel = kernels[0]
    plan = kernel.plan
    step = plan.steps[-1]
    assert isinstance(step, Launch)
    wrong: list[tuple[LaunchPlan, str]] = [
        (moved(plan, args=step.args[:-1]), "arguments"),
        (moved(plan, args=(*step.args, Arg.i64("more", 1))), "arguments"),
        (moved(plan, args=step.args[::-1]), "bytes at"),
        (moved(plan, block=(256, 1, 1)), "built for"),
        (moved(plan, block=(1024, 2, 1)), "at most"),
        (moved(plan, grid=(1, 70000, 1)), "cannot be launched"),
        (moved(plan, smem=1 << 20), "shared memory"),
    ]
    for bad, word in wrong:
        with pytest.raises(EmulatorError, match=word):
            kernel.run(kernel.text, Order("late"), bad)
    with pytest.raises(EmulatorError, match="not in the PTX"):
        kernel.run(kernel.text.replace("entry gemm", "entry other"), Order("late"))


def test_less_shared_memory_than_is_used_shows(kernels: list[Kernel]) -> None:
    kernel = kernels[0]
    report = kernel.run(kernel.text, Order("late", 1), moved(kernel.plan, smem=4096))
    assert [f.kind for f in report.faults] == [FaultKind.OUT_OF_BOUNDS]
    assert "leave the 4096 bytes of the CTA" in report.faults[0].message


def test_fewer_threads_than_the_kernel_needs_show(kernels: list[Kernel]) -> None:
    report = kernels[0].run(kernels[0].text, Order("late", 1), moved(kernels[0].plan, block=(64, 1, 1)))
    assert not report.clean


@pytest.mark.parametrize(
    ("before", "body", "word"),
    [
        (".global .align 4 .b8 big[1099511627776];", "mov.u64 %rd1, big;", "over"),
        ("", ".local .align 4 .b8 big[1073741824]; mov.u64 %rd1, big; ld.local.b32 %r1, [big];", "over"),
        (".shared .align 4 .b8 big[1073741824];", "st.shared.b32 [big], %r1;", "no device"),
        ("".join(f".global .align 4 .b8 big{i}[67108864]; " for i in range(40)), "mov.u64 %rd1, big0;",
         "variables of the module have 2684354560 bytes .* over 67108864"),
        (".global .align 4 .b8 big[67108864];", "mov.u64 %rd1, big; ld.global.u8 %r1, [%rd1];",
         "big has 67108864 bytes, watched in pieces of 1: .* over 33554432"),
        (".extern .func (.param .b32 x) other (.param .b32 y);", "mov.u64 %rd1, other;", "other"),
    ],
)  # fmt: skip
def test_memory_that_no_device_has_is_refused(before: str, body: str, word: str) -> None:
    program = text_kernel(f".reg .b32 %r<4>; .reg .b64 %rd<4>; mov.b32 %r1, 0; {body} ret;", before=before)
    step = Launch("run", (Arg.ptr("a"), Arg.ptr("out")), grid=(1, 1, 1), block=(32, 1, 1))
    plan = LaunchPlan(family="test", arch="sm_80", kind="cuda", entries=("run",), sizes=(), steps=(step,))
    with pytest.raises(EmulatorError, match=word):
        run_plan(program, plan, {}, {"a": np.zeros(4), "out": np.zeros(4)}, {})


def test_arrays_that_cannot_be_placed_are_refused(kernels: list[Kernel]) -> None:
    with pytest.raises(EmulatorError, match="overlap"):
        run_plan(
            Program.from_ptx(kernels[0].text), kernels[0].plan, kernels[0].sizes,
            {"a": Operand(np.zeros((4, 4), np.float32), (8, 4))}, {},
        )  # fmt: skip
    with pytest.raises(EmulatorError, match="not given"):
        run_plan(Program.from_ptx(kernels[0].text), kernels[0].plan, kernels[0].sizes, {}, {})
    with pytest.raises(EmulatorError):
        run_plan(Program.from_ptx(kernels[0].text), kernels[0].plan, {}, {}, {})
