"""Does what gemm_sm90 proposes compile without spills, to the instructions meant, as large as foretold?"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernel.cuda_problems import problem
from kernel.sass import Code, disassemble
from kernel.test_gemm_sm90_space import BASE, H100, start
from rooftile.problem import Gemm

from bench.gpu import cases
from search_space.family import BuildSpec
from search_space.plan.gemm_sm90 import FAMILY
from search_space.plan.gemm_sm90_plan import SOURCE
from search_space.plan.gemm_sm90_tile import Tile
from search_space.schedule import Schedule
from service.paths import kernels_dir
from worker.compile import Artifact, compile_kernel
from worker.errors import CompileFailure

SPILLS = ("spill_stores_bytes", "spill_loads_bytes", "stack_bytes", "static_smem_bytes")
NK = {"b": "nk"}
TURNS = {"hand_off": "pingpong", "consumers_m": 2, "registers": "40/232"}
SMALL = {"bm": 64, "bn": 64, "stages": 2, "consumers_m": 1, "registers": "40/248"}


def schedule(p: Gemm, **values: Any) -> Schedule:
    s = start(p).replace(**(BASE | values))
    assert FAMILY.check(p, H100, s) == []
    return s


def built(p: Gemm, s: Schedule, home: Path) -> Artifact:
    return compile_kernel(FAMILY.build(p, H100, s), home=home)


def code_of(p: Gemm, s: Schedule, home: Path, folder: Path) -> Code:
    return disassemble(built(p, s, home).data, "gemm", folder)


def assert_lean(artifact: Artifact, p: Gemm, s: Schedule) -> None:
    for entry in artifact.entries:
        found = artifact.resources["entries"][entry]
        assert {name: found[name] for name in SPILLS} == dict.fromkeys(SPILLS, 0), (p.title(), s.one_line())
    # setmaxnreg counts on what a thread has when the kernel begins.
    registers, t = artifact.resources["entries"]["gemm"]["registers"], Tile.of(s)
    assert registers == min(255, t.entry_registers) or t.producer_registers == 0


def test_defaults_do_not_spill(home: Path) -> None:
    """Nor are products serialised, or setmaxnreg ignored: such builds are refused (worker.compile)."""
    large = cases.problems(FAMILY, "sm_90a")
    assert {p.epilogue.activation for p in large} == {None, "relu", "gelu", "silu"}
    # Few rows, a deep k, rows that no store by TMA may write.
    others = [
        problem("f16", 16, 4096, 4096, layout=NK, epilogue={"activation": "silu"}),
        problem("bf16", 128, 128, 65536, layout=NK),
        Gemm(4095, 4094, 4096, {"a": "bf16", "c": "f32"}, layout=NK, epilogue={"activation": "gelu_tanh"}),
    ]
    seen: list[BuildSpec] = []
    for p in (*large, *others):
        s = FAMILY.default(p, H100)
        build = FAMILY.build(p, H100, s)
        if build not in seen:  # the same code serves many problems
            seen.append(build)
            assert_lean(built(p, s, home), p, s)
    assert len(seen) > len(large) // 2


def test_the_leanest_producer_has_enough(home: Path) -> None:
    """24 registers, for two operands' hints, clusters either way and Hilbert's curve."""
    p = problem("bf16", 4096, 4096, 4096, layout={"a": "km", "b": "kn"})
    s = schedule(
        p, registers="24/240", cluster_m=2, cluster_n=2, raster="hilbert", hint_a="first", hint_b="last"
    )
    assert_lean(built(p, s, home), p, s)


def test_the_space_refuses_what_the_assembler_refuses(home: Path) -> None:
    """The rule on registers at entry is not there for nothing."""
    p = problem("bf16", layout=NK)
    values = {"bm": 192, "bn": 256, "consumers_m": 3, "registers": "32/160", "stages": 2, "store_columns": 64}
    s = start(p).replace(**(BASE | values))
    assert "entry_registers" in {v.rule for v in FAMILY.check(p, H100, s)}
    with pytest.raises(CompileFailure):
        built(p, s, home)


def test_shared_memory_is_what_the_template_uses(home: Path) -> None:
    """The template compares its own count with the planner's when it is compiled."""
    p = problem("bf16", layout=NK)
    build = FAMILY.build(p, H100, schedule(p, **SMALL))
    told = dict(build.defines)
    wrong = told | {"RT_SMEM_BYTES": str(int(told["RT_SMEM_BYTES"]) + 16)}
    with pytest.raises(CompileFailure, match="asks for as much shared memory"):
        compile_kernel(replace(build, defines=tuple(wrong.items())), home=home)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("STORE_TURN = 7", "STORE_TURN = 15", "a block has 15"),
        ("MULTIPLY_TURN = 5", "MULTIPLY_TURN = 2", "has one use"),
        ("READERS = 4 * SHARERS", "READERS = (1 << 20) * SHARERS", "a phase counts"),
    ],
)
def test_counts_and_numbers_of_barriers_are_checked(
    old: str, new: str, says: str, home: Path, tmp_path: Path
) -> None:
    p = problem("bf16", layout=NK)
    root = tmp_path / "kernels"
    shutil.copytree(kernels_dir(), root)
    source = root / SOURCE
    text = source.read_text()
    assert text.count(old) == 1
    source.write_text(text.replace(old, new))
    with pytest.raises(CompileFailure, match=says):
        compile_kernel(FAMILY.build(p, H100, schedule(p, **SMALL)), home=home, root=root)


@pytest.mark.parametrize("eighths", ["0", "33"])
def test_a_product_has_columns_that_wgmma_knows(eighths: str, home: Path) -> None:
    p = problem("bf16", layout=NK)
    build = FAMILY.build(p, H100, schedule(p, **SMALL))
    wrong = dict(build.defines) | {"RT_WGMMA_EIGHTHS": eighths}
    with pytest.raises(CompileFailure, match="N is 8 to 256"):
        compile_kernel(replace(build, defines=tuple(wrong.items())), home=home)


@pytest.mark.parametrize(
    ("values", "there", "not_there"),
    [
        ({}, {"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG", "STSM", "SYNCS"}, {"STG", "UCGABAR_ARV"}),
        ({"store": "staged", "store_columns": 32, "vector": 8, "registers": "none"},
         {"HGMMA", "UTMALDG", "STG", "STS"}, {"UTMASTG", "USETMAXREG", "STSM"}),
        ({"cluster_m": 2, "store": "direct", "store_columns": 32}, {"UTMALDG", "UCGABAR_ARV", "STG"},
         {"UTMASTG", "STSM"}),
        (TURNS, {"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG", "STSM", "SYNCS"}, {"STG", "UCGABAR_ARV"}),
        (TURNS | {"store": "staged", "store_columns": 32, "vector": 8, "cluster_m": 2},
         {"HGMMA", "UTMALDG", "STG", "STS", "USETMAXREG", "UCGABAR_ARV"}, {"UTMASTG", "STSM"}),
    ],
)  # fmt: skip
def test_instructions_are_those_meant(
    values: dict[str, Any], there: set[str], not_there: set[str], home: Path, tmp_path: Path
) -> None:
    p = problem("bf16", layout=NK)
    code = code_of(p, schedule(p, **(SMALL | values)), home, tmp_path)
    opcodes = {o.split(".")[0] for o in code.opcodes}
    assert there <= opcodes
    assert not not_there & opcodes
    # Nowhere spills, nor accesses by generic addresses, which cost a look at what they point to.
    assert not {"LDL", "STL", "LD", "ST"} & opcodes
    assert any("MULTICAST" in o for o in code.opcodes) == ("cluster_m" in values)
    # Consumers that take turns tell each other so, and wait for it: to multiply, and to store.
    assert sum(o.startswith("BAR.ARV") for o in code.opcodes) == (2 if "hand_off" in values else 0)


def test_a_tile_of_k_is_a_handful_of_instructions(home: Path, tmp_path: Path) -> None:
    """Two blocks of 64 rows by 128 columns, four steps of 16: eight products, and little beside them."""
    p = problem("bf16", layout={"a": "km", "b": "nk"})
    code = code_of(p, schedule(p, consumers_m=1, registers="40/248"), home, tmp_path)
    loop = code.main_loop("HGMMA")
    assert loop["HGMMA"] == 2 * 4
    assert sum(loop.values()) < 80
    assert loop["WARPGROUP"] >= 1
    # One box of each operand and turn.
    assert code.main_loop("UTMALDG")["UTMALDG"] == 2 + 1


def test_the_epilogue_is_compiled_once(home: Path, tmp_path: Path) -> None:
    """Its loop over parts is a real one: gelu of 128 sums would be most of the kernel, and of its compile."""
    p = problem("bf16", layout=NK, epilogue={"activation": "gelu"})
    s = schedule(p, bn=256, store="staged", store_columns=32, vector=8)
    assert len(code_of(p, s, home, tmp_path).opcodes) < 1800
