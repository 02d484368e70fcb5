"""Does what gemm_sm70 proposes compile for Volta and Hopper, without spills, to code for tensor cores?"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from kernel.cuda_problems import FULL, SM70_ARCHS, layouts, problem
from kernel.published_schedules import SM70
from kernel.sass import HMMA_884, disassemble, raw_opcodes
from kernel.test_published_schedules import schedule_of
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm70 import FAMILY
from search_space.plan.gemm_sm70_tile import Tile
from search_space.schedule import Schedule
from worker.compile import Artifact, compile_kernel


def built(p: Gemm, arch: str, s: Schedule, home: Path) -> Artifact:
    artifact = compile_kernel(FAMILY.build(p, Device.for_arch(arch), s), home=home)
    found = artifact.resources["entries"]["gemm"]
    assert (found["spill_stores_bytes"], found["stack_bytes"], found["static_smem_bytes"]) == (0, 0, 0)
    foretold = Tile.of(s).registers(Shape.of(p))
    assert foretold - 40 <= found["registers"] <= min(255, foretold + 90), (foretold, s.one_line())
    return artifact


@pytest.mark.parametrize("arch", SM70_ARCHS)
def test_defaults_do_not_spill(arch: str, home: Path) -> None:
    device = Device.for_arch(arch)
    for layout in list(layouts("f16"))[::4]:
        p = problem("f16", layout=layout)
        built(p, arch, FAMILY.default(p, device), home)
    for p in (problem("f16", beta="any", epilogue=FULL), problem("f16", 2047, 2047, 2047)):
        built(p, arch, FAMILY.default(p, device), home)


def test_published_schedules_compile(home: Path) -> None:
    """A sample; the space's rules let all of them pass (test_published_schedules)."""
    for row in SM70[::6]:
        space, s = schedule_of(FAMILY, row, "sm_70")
        assert isinstance(space.problem, Gemm)
        built(space.problem, "sm_70", s, home)


def test_fragment_shapes_and_stages_compile(home: Path) -> None:
    device, rng = Device.for_arch("sm_70"), Random(1)
    for fragment in ("m16n16k16", "m32n8k16", "m8n32k16"):
        p = problem("f16", layout={"b": "nk"})
        s = FAMILY.default(p, device).replace(
            bm=64, bn=64, bk=32, warps_m=2, warps_n=2, fragment=fragment, stages=rng.choice((1, 2)), vector=8
        )
        assert FAMILY.check(p, device, s) == []
        built(p, "sm_70", s, home)


def wanted(arch: str) -> Schedule:
    return FAMILY.default(problem("f16"), Device.for_arch(arch)).replace(
        bm=128, bn=64, bk=32, warps_m=2, warps_n=2, fragment="m16n16k16", stages=2, pad=8, split_k=1,
        copy_a=16, copy_b=16, resident=1,
    )  # fmt: skip


def test_volta_multiplies_with_its_tensor_cores(home: Path) -> None:
    code = raw_opcodes(built(problem("f16"), "sm_70", wanted("sm_70"), home).data, "gemm")
    # 4 x 2 fragments in each of two steps. An HMMA is 8 x 8 x 4 for each of a warp's four quad pairs, so that
    # m16n16k16 is four deep four times over.
    assert code[HMMA_884] == 4 * 2 * 2 * 16


def test_the_main_loop_is_made_of_the_instructions_meant(home: Path, tmp_path: Path) -> None:
    code = disassemble(built(problem("f16"), "sm_90a", wanted("sm_90a"), home).data, "gemm", tmp_path)
    loop = code.main_loop("HMMA")
    # Hopper's m16n8k16 makes a fragment of 16 columns two instructions.
    assert loop["HMMA"] == 4 * 2 * 2 * 2
    assert loop["BAR"] == 1
    assert loop["STS"] == (128 + 64) * 64 // 16 // 128  # pieces that were read before the products
    assert not {"LDL", "STL", "LD", "ST"} & {o.split(".")[0] for o in code.opcodes}
