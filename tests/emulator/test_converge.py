"""Do lanes that wait for the rest of their warp wait again and again, as in a loop, without being accused?"""

from __future__ import annotations

import numpy as np
import pytest
from support.emulator import Cuda, launch

TEXT = """
extern "C" __global__ void run(const int* a, int* out) {
    int v = a[threadIdx.x], n = 0;
    for (int turn = 0; turn < 8; ++turn) {
        if (v % 2) { n += v; } else { for (int i = 0; i < v; ++i) n += i * turn; }
        __syncwarp();
        n += __shfl_xor_sync(0xffffffff, n, 1) & 1;
        v = (v * 5 + turn) % 7;
    }
    out[threadIdx.x] = n;
}
"""


@pytest.mark.parametrize("order", ["early", "late", "ahead", "behind", "random"])
def test_a_warp_that_parts_in_every_turn_of_a_loop(cuda: Cuda, order: str) -> None:
    a = np.arange(128, dtype=np.int32)
    v, n = a.astype(np.int64), np.zeros(128, np.int64)
    for turn in range(8):
        n = n + np.where(v % 2 == 1, v, turn * (v * (v - 1) // 2))
        n = n + (n[np.arange(128) ^ 1] & 1)
        v = (v * 5 + turn) % 7
    out = np.full(128, -1, np.int32)
    report = launch(cuda(TEXT), {"a": a, "out": out}, block=128, order=order)
    assert report.clean, report.faults[0].message
    assert (out == n).all()
