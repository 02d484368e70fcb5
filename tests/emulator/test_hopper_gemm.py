"""Is a GEMM by TMA, mbarriers and WGMMA right in every order, and is each thing that it lacks accused?"""

from __future__ import annotations

import numpy as np
import pytest
from support.hopper import gemm_source, run_gemm
from support.ptx_sources import nvrtc_ptx

from emulator import Order, Program


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.from_ptx(nvrtc_ptx(13, "sm_90a", gemm_source()))


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize("k", [64, 328])
def test_gemm(program: Program, order: str, k: int) -> None:
    report, out, wanted = run_gemm(program, 200, 136, k, order=order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, wanted)
