"""Does what gemm_sm80 proposes compile without spills, to the instructions meant, as large as foretold?"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from kernel.cuda_problems import FULL, SM80_ARCHS, dtypes_of, layouts, problem
from kernel.published_schedules import SM80
from kernel.sass import Code, disassemble
from kernel.test_published_schedules import schedule_of
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm80 import FAMILY
from search_space.plan.gemm_sm80_tile import Tile
from search_space.schedule import Schedule
from worker.compile import Artifact, compile_kernel
from worker.errors import CompileFailure

SPILLS = ("spill_stores_bytes", "spill_loads_bytes", "stack_bytes", "static_smem_bytes")
_LAYOUTS = {"wide": cycle(list(layouts("bf16"))), "eight": cycle(list(layouts("s8")))}


def built(p: Gemm, arch: str, s: Schedule, home: Path) -> Artifact:
    return compile_kernel(FAMILY.build(p, Device.for_arch(arch), s), home=home)


def assert_lean(artifact: Artifact, p: Gemm, s: Schedule) -> None:
    for entry in artifact.entries:
        found = artifact.resources["entries"][entry]
        assert {name: found[name] for name in SPILLS} == dict.fromkeys(SPILLS, 0), (p.title(), s.one_line())
    registers = artifact.resources["entries"]["gemm"]["registers"]
    foretold = Tile.of(s).registers(Shape.of(p), artifact.arch)
    # The estimate is what a thread cannot do without; the assembler takes more where it is there.
    assert foretold - 40 <= registers <= min(255, foretold + 90), (foretold, registers, s.one_line())


@pytest.mark.parametrize("arch", SM80_ARCHS)
def test_defaults_do_not_spill(arch: str, home: Path) -> None:
    device = Device.for_arch(arch)
    for dtype in dtypes_of(arch):
        layout = next(_LAYOUTS["wide" if dtype in ("f16", "bf16", "tf32") else "eight"])
        p = problem(dtype, layout=layout)
        s = FAMILY.default(p, device)
        assert_lean(built(p, arch, s, home), p, s)


def test_defaults_do_not_spill_with_every_epilogue_and_odd_sizes(home: Path) -> None:
    device = Device.for_arch("sm_80")
    for p in (
        problem("bf16", beta="any", epilogue=FULL, batch=2),
        problem("f16", 16, 4096, 4096, epilogue={"activation": "silu"}),
        problem("tf32", 2047, 2047, 2047),
        problem("s8", 2047, 2047, 2047, epilogue={"bias": "n", "activation": "relu", "residual": True}),
        problem("bf16", 64, 64, 65536),
    ):
        s = FAMILY.default(p, device)
        assert_lean(built(p, "sm_80", s, home), p, s)


def test_published_schedules_compile(home: Path) -> None:
    """A sample; the space's rules let all of them pass (test_published_schedules)."""
    for i, row in enumerate(SM80):
        if i % 13 == 0 and not row.refused:
            space, s = schedule_of(FAMILY, row, row.archs[0])
            assert isinstance(space.problem, Gemm)
            found = built(space.problem, row.archs[0], s, home).resources["entries"]["gemm"]
            assert found["spill_stores_bytes"] == 0, row


def test_the_space_refuses_what_spills(home: Path) -> None:
    """The rule on registers is not there for nothing: what it refuses does spill."""
    p, device = problem("bf16"), Device.for_arch("sm_80")
    s = FAMILY.default(p, device).replace(
        bm=256, bn=128, bk=32, warps_m=2, warps_n=2, stages=2, lookahead=True
    )
    assert {v.rule for v in FAMILY.check(p, device, s)} == {"registers"}
    with pytest.raises(CompileFailure, match="Registers do not suffice"):
        built(p, "sm_80", s, home)


def test_shared_memory_is_what_the_template_uses(home: Path) -> None:
    """The template compares its own count with the planner's when it is compiled."""
    p, device = problem("bf16"), Device.for_arch("sm_80")
    build = FAMILY.build(p, device, FAMILY.default(p, device))
    told = dict(build.defines)
    wrong = told | {"RT_SMEM_BYTES": str(int(told["RT_SMEM_BYTES"]) + 16)}
    with pytest.raises(CompileFailure, match="asks for as much shared memory"):
        compile_kernel(replace(build, defines=tuple(wrong.items())), home=home)


MAIN_LOOPS = [
    # arch, dtype, layout of B, opcode of the product, instructions for one fragment
    ("sm_80", "f16", "kn", "HMMA", 1),
    ("sm_80", "bf16", "nk", "HMMA", 1),
    ("sm_80", "tf32", "nk", "HMMA", 1),
    ("sm_80", "s8", "nk", "IMMA", 1),
    ("sm_89", "e4m3", "nk", "QMMA", 1),
    ("sm_90a", "bf16", "kn", "HMMA", 1),
    ("sm_120a", "e5m2", "nk", "QMMA", 1),
    ("sm_120a", "f16", "kn", "HMMA", 1),
]


@pytest.mark.parametrize(("arch", "dtype", "b", "opcode", "each"), MAIN_LOOPS)
def test_the_main_loop_is_made_of_the_instructions_meant(
    arch: str, dtype: str, b: str, opcode: str, each: int, home: Path, tmp_path: Path
) -> None:
    p = problem(dtype, layout={"b": b})
    step = {"f16": 16, "bf16": 16, "tf32": 8}.get(dtype, 32)
    values: dict[str, Any] = {
        "bm": 128, "bn": 64, "bk": 2 * step, "warps_m": 2, "warps_n": 2, "stages": 3, "split_k": 1,
        "copy_a": "cp_async_16", "copy_b": "cp_async_16", "lookahead": False, "resident": 1,
    }  # fmt: skip
    s = FAMILY.default(p, Device.for_arch(arch)).replace(**values)
    assert FAMILY.check(p, Device.for_arch(arch), s) == []
    code: Code = disassemble(built(p, arch, s, home).data, "gemm", tmp_path)
    loop = code.main_loop(opcode)
    # Warps of 64 x 32: 4 x 4 fragments in each of two steps; four ldmatrix.x4 of A and two of B a step.
    assert loop[opcode] == 4 * 4 * 2 * each
    assert loop["LDSM"] == (4 + 2) * 2
    # 128 rows of A and 64 of B, 64 bytes deep, in pieces of 16 bytes by 128 threads.
    assert loop["LDGSTS"] == (128 + 64) * 64 // 16 // 128
    assert loop["LDGDEPBAR"] == 1
    assert loop["DEPBAR"] == 1
    assert loop["BAR"] == 1
    assert not {"LDG", "STS", "LDS"} & set(loop)
    # Nowhere spills, nor accesses by generic addresses, which cost a look at what they point to.
    assert not {"LDL", "STL", "LD", "ST"} & {o.split(".")[0] for o in code.opcodes}
    assert any(".M88.4" in o for o in code.loop_text("LDSM"))
    assert any(".MT88.4" in o for o in code.loop_text("LDSM")) == (b == "kn")


def test_narrow_and_plain_copies(home: Path, tmp_path: Path) -> None:
    values = {
        "bm": 64,
        "bn": 64,
        "bk": 32,
        "warps_m": 2,
        "warps_n": 2,
        "split_k": 1,
        "stages": 2,
        "resident": 1,
    }
    for copy, opcode, count in (("cp_async_4", "LDGSTS", 64 * 64 // 4 // 128 + 2), ("plain", "LDG", 2 * 8)):
        p = problem("bf16")
        s = FAMILY.default(p, Device.for_arch("sm_80")).replace(**values, copy_a=copy, copy_b="cp_async_16")
        code = disassemble(built(p, "sm_80", s, home).data, "gemm", tmp_path)
        loop = code.main_loop("HMMA")
        assert not {"LD", "ST"} & {o.split(".")[0] for o in code.opcodes}
        assert loop[opcode] == count
        assert loop["STS"] == (2 if copy == "plain" else 0)


def test_word_by_word_fragments_of_tf32(home: Path, tmp_path: Path) -> None:
    """m- and n-contiguous tf32 cannot be transposed by ldmatrix: it is read as words."""
    p = problem("tf32", layout={"a": "km", "b": "kn"})
    s = FAMILY.default(p, Device.for_arch("sm_80")).replace(
        bm=64, bn=64, bk=16, warps_m=2, warps_n=2, split_k=1, resident=1, lookahead=False
    )
    loop = disassemble(built(p, "sm_80", s, home).data, "gemm", tmp_path).main_loop("HMMA")
    assert loop["LDSM"] == 0
    assert loop["LDS"] == 2 * (2 * 4 + 4 * 2)  # two steps; 4 words of each A fragment, 2 of each B fragment
    assert loop["HMMA"] == 2 * 2 * 4
