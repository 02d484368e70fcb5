"""Which schedules do the best public kernels of the sm_80 and sm_70 class use?

Read from their sources and profiles; each row names where. `Published` holds what such a source says (tile,
depth, stages, warps); what it leaves open is taken from our default. `refused` says why a row cannot run with
us, where it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, product
from typing import Any


@dataclass(frozen=True)
class Published:
    """A row: the tile as the source gives it."""

    source: str
    dtype: str
    bm: int
    bn: int
    bk: int
    warps_m: int
    warps_n: int
    stages: int
    archs: tuple[str, ...] = ("sm_80",)
    more: dict[str, Any] = field(default_factory=dict)
    """Other parameters that the source names."""
    refused: str = ""
    """The rule, where our rules refuse it."""
    because: str = ""
    """Words of the reason."""


def _cutlass(dtype: str, scale: int) -> list[Published]:
    """generator.py's sm_80 tensor-op tiles: block m x n x k, stages, warps. `scale`: elements in 16 bits,
    twice over."""
    rows = [
        # bm, bn, bk, stages, warps_m, warps_n
        (256, 128, 32, 3, 4, 2), (128, 256, 32, 3, 2, 4), (256, 64, 32, 3, 4, 1), (256, 64, 32, 4, 4, 1),
        (64, 256, 32, 4, 1, 4), (128, 128, 32, 3, 2, 2), (128, 128, 32, 4, 2, 2), (128, 128, 32, 5, 2, 2),
        (128, 64, 32, 6, 2, 2), (64, 128, 32, 6, 2, 2), (64, 64, 32, 10, 2, 2),
        (256, 128, 64, 3, 4, 2), (128, 256, 64, 3, 2, 4), (256, 64, 64, 4, 4, 1), (64, 256, 64, 4, 1, 4),
        (256, 64, 64, 3, 4, 1), (64, 256, 64, 3, 1, 4), (128, 128, 64, 3, 2, 2), (128, 128, 64, 4, 2, 2),
        (128, 128, 64, 5, 2, 2), (128, 64, 64, 3, 2, 2), (64, 128, 64, 3, 2, 2), (64, 64, 64, 5, 2, 2),
    ]  # fmt: skip
    return [
        Published("CUTLASS generator.py, sm_80", dtype, bm, bn, int(bk * scale / 2), wm, wn, stages)
        for bm, bn, bk, stages, wm, wn in rows
    ]


_ADA = ("sm_89", "sm_120a")

SM80: tuple[Published, ...] = (
    *_cutlass("f16", 2),
    *_cutlass("bf16", 2),
    *_cutlass("tf32", 1),
    *_cutlass("s8", 4),
    # quack's set for sm_80: warps 4 or 8, BK 32 or 64, stages by what fits.
    *(Published("quack, sm_80", "bf16", 128, 128, bk, 2, wn, 3) for bk in (32, 64) for wn in (2, 4)),
    *(Published("quack, sm_80", "bf16", 128, 160, bk, 4, 2, 3) for bk in (32, 64)),
    Published("quack, sm_80, 4 warps", "bf16", 128, 160, 32, 2, 2, 3),
    Published("quack, sm_80, 4 warps", "bf16", 128, 160, 64, 2, 2, 3, more={"banks": "pad"}),
    *(Published("quack, sm_80", "bf16", 128, 192, bk, 2, 4, 3) for bk in (32, 64)),
    Published("quack, sm_80, 4 warps", "bf16", 128, 192, 32, 2, 2, 3, refused="registers"),
    *(Published("quack, sm_80", "bf16", 128, 256, bk, 2, 4, 3) for bk in (32, 64)),
    *(
        Published("quack, sm_80", "bf16", bm, bn, bk, 2, 2, 4)
        for bm, bn in ((128, 64), (64, 128))
        for bk in (32, 64)
    ),
    # cuBLAS, by the names in a profile.
    Published(
        "cutlass_80_tensorop_s16816gemm_f16_128x64_64x3", "f16", 128, 64, 64, 2, 2, 3, ("sm_80", "sm_120a")
    ),
    Published("sm89_xmma fp8 128x128x64 s3 warps 2x2", "e4m3", 128, 128, 64, 2, 2, 3, _ADA),
    # gau-nernst, learn-cuda: v6, and v6b with a band of 8 tiles.
    Published(
        "gau-nernst v6", "bf16", 128, 128, 64, 2, 2, 2, ("sm_80", "sm_120a"), {"banks": "swizzle", "group": 1}
    ),
    Published(
        "gau-nernst v6b",
        "bf16",
        128,
        128,
        64,
        2,
        2,
        2,
        ("sm_80", "sm_120a"),
        {"banks": "swizzle", "group": 8},
    ),
    # waynehacking8 mma_warptile, sm_120.
    *(
        Published("waynehacking8 f16", "f16", 128, 128, 32, 2, 2, stages, ("sm_120a",))
        for stages in (2, 3, 4)
    ),
    Published("waynehacking8 fp8", "e4m3", 128, 128, 64, 2, 2, 3, _ADA, {"lookahead": True}),
    Published("waynehacking8 fp8, larger", "e4m3", 256, 128, 64, 4, 2, 3, _ADA),
    Published("waynehacking8 fp8, largest", "e4m3", 256, 256, 64, 4, 4, 2, _ADA, refused="registers"),
    # nvMatmulHeuristics' first choice on an A100.
    Published("nvMMH A100 4096^3", "f16", 256, 128, 64, 4, 2, 3),
    Published("nvMMH A100 128x7168x16384", "f16", 128, 256, 64, 2, 4, 3, more={"split_k": 3}),
)


def _union() -> list[Published]:
    """The union of all sm_80 kernels as a product: every tile of the column, shared by 4 or 8 warps in every
    way that leaves them 32 or 64 rows (16 of a tile that has no more) and up to 64 columns, as in the column
    (8 of 64 rows where that is not to be had), at each depth; bands and parts of k in turn, so that each of
    their combinations meets tiles, depths and warp tiles of every kind. Some are too large to run."""
    orders: Iterator[dict[str, Any]] = cycle(
        {"group": group, "split_k": splits, "split_sum": way}
        for splits in range(1, 9)
        for way in (("last",) if splits == 1 else ("last", "second"))
        for group in (1, 4, 8)
    )
    rows = []
    for bm, bn, bk, stages in product((16, 32, 64, 128, 256), range(32, 257, 32), (32, 64), range(2, 7)):
        for warps_m, warps in product((1, 2, 4, 8), (4, 8)):
            warps_n = warps // warps_m
            if warps_n == 0 or bm // warps_m not in (min(bm, 32), 64) or bn // warps_n % 8:
                continue
            if bn // warps_n > 64 and (bm * bn <= 8 * 64 * 64 or (warps_m, warps) != (4, 8)):
                continue
            # As for quack's: fragments of uneven spans are read from rows that lie apart.
            banks = {"banks": "pad"} if (bk, bn // warps_n) == (64, 80) else {}
            rows.append(
                Published("union of the sm_80 column", "bf16", bm, bn, bk, warps_m, warps_n, stages,
                          more=next(orders) | banks)
            )  # fmt: skip
    return rows


UNION80: tuple[Published, ...] = tuple(_union())

LEFT_OUT: tuple[Published, ...] = tuple(
    Published(f"split-K, {way}", "f16", 128, 128, 32, 2, 2, 2,
              more={"split_k": 4, "split_sum": way}, refused="left_out", because=why)
    for way, why in (("turnstile", "promises no order of blocks"), ("atomic", "order in which blocks arrive"))
)  # fmt: skip
"""Ways to add parts of k that sm_70 and sm_80 kernels have and ours do not."""

_HALF = "f16"
SM70: tuple[Published, ...] = (
    Published("WMMA practice on V100", _HALF, 128, 128, 32, 2, 4, 2, ("sm_70", "sm_90a"), {"pad": 8}),
    Published("WMMA practice on V100", _HALF, 128, 128, 32, 2, 2, 2, ("sm_70", "sm_90a"), {"pad": 8}),
    *(
        Published(
            "union of the sm_70 column", _HALF, bm, bn, bk, bm // wm, bn // wn, 2, ("sm_70",), {"pad": 8}
        )
        for bm in (64, 128, 256)
        for bn in (64, 128)
        for bk in (16, 32)
        for wm, wn in ((32, 32), (64, 32), (64, 64))
        if 4 <= (bm // wm) * (bn // wn) <= 8
    ),
    *(
        Published(
            "split-k 1 to 8", _HALF, 64, 64, 32, 2, 2, 2, ("sm_70",), {"pad": 8, "split_k": n, "group": g}
        )
        for n, g in ((2, 1), (4, 2), (8, 8))
    ),
)
