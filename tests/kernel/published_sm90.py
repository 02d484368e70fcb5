"""Which 16-bit schedules do the best public kernels for H100 use?

Read from their sources and profiles, as in published_schedules.py; what a source leaves open is our
default's. The ring is as deep as the source says or, where it says "as fits", as fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

TWO, THREE = "40/232", "32/160"
HEAVY = "24/240"
"""CUTLASS's and quack's rule: with 208 sums a thread or more."""
MOST_STAGES = 16
"""DeepGEMM's end; of the other sources' tiles that are as deep as fits, fewer fit."""


@dataclass(frozen=True)
class Hopper:
    """A row: tile, cluster and roles as the source gives them."""

    source: str
    bm: int
    bn: int
    bk: int
    stages: int
    """0: as many as fit, MOST_STAGES at most."""
    hand_off: str = "cooperative"
    consumers: tuple[int, int] = (2, 1)
    cluster: tuple[int, int] = (1, 1)
    registers: str = TWO
    more: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bf16"
    refused: str = ""
    """The rule, where our rules refuse it."""
    because: str = ""
    """Words of the reason, of what is left out by name."""


def _deep_gemm() -> list[Hopper]:
    """sm90.hpp and sm90_bf16_gemm: one warpgroup multiplies up to 64 rows, else two; n of 16 to 256; clusters
    of two either way; bands of 8 or 16; promotion of 256 bytes. 16 and 32 rows for small m, 256 where out is
    not f32. Its own filter wants one side of at most 128, and no ring of fewer than 3."""
    rows = []
    for bm in (16, 32, 64, 128, 256):
        for bn in range(16, 257, 16):
            if bm > 128 and bn > 128:
                continue
            one = bm <= 64
            for cluster in ((1, 1), (2, 1), (1, 2)):
                more = {"promotion": 256, "group": 8 if bn % 32 else 16, "raster": "m", "persistent": True}
                consumers, registers = ((1, 1), "40/248") if one else ((2, 1), TWO)
                rows.append(
                    Hopper(
                        "DeepGEMM sm90 bf16",
                        bm,
                        bn,
                        64,
                        0,
                        "cooperative",
                        consumers,
                        cluster,
                        registers,
                        more,
                    )
                )
    return rows


def _cutlass() -> list[Hopper]:
    """generator.py, sm_90 16-bit: cooperative from 128 rows on, ping-pong from 64, clusters of its list."""
    clusters = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2), (1, 8), (8, 1))
    rows = [
        Hopper("CUTLASS sm90 cooperative", bm, bn, 64, 0, "cooperative", (2, 1), cluster, TWO)
        for bm, bn in ((128, 64), (128, 128), (128, 256), (256, 64), (256, 128))
        for cluster in clusters
    ]
    rows += [
        Hopper("CUTLASS sm90 ping-pong", bm, bn, 64, 0, "pingpong", (2, 1), cluster, TWO)
        for bm, bn in ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128))
        for cluster in clusters
    ]
    rows += [
        Hopper("CUTLASS sm90, K of 8 instructions", 128, 128, 128, 0),
        Hopper("CUTLASS sm90, K of 16 instructions", 128, 64, 256, 2),
        Hopper("CUTLASS sm90, K of 16 instructions, in turns", 64, 64, 256, 3, "pingpong"),
        Hopper("CUTLASS sm90, K of 16 instructions", 128, 128, 256, 2, refused="shared_memory"),
        Hopper("CUTLASS sm90, 4 x 4", 128, 128, 64, 0, cluster=(4, 4), refused="cluster"),
        # The generator leaves it out as well.
        Hopper("CUTLASS sm90, 256 x 256", 256, 256, 64, 0, refused="registers"),
        *(
            Hopper("CUTLASS persistent scheduler, swizzle", 128, 128, 64, 0, more={"group": g, "raster": r})
            for g in (1, 2, 4, 8)
            for r in ("m", "n")
        ),
        Hopper("CUTLASS KernelTmaWarpSpecialized", 64, 128, 64, 0, consumers=(1, 1), registers="none",
               more={"persistent": False}),
        Hopper("CUTLASS NoSmem epilogue", 128, 128, 64, 0, more={"store": "direct"}),
        # Two panels are on their way out at once, of 64 x 32 for cooperative consumers.
        *(
            Hopper("CUTLASS StagesD", bm, bn, 64, 0, hand_off, more={"store_panels": 2, "store_columns": 32})
            for hand_off, bm, bn in (
                ("cooperative", 128, 128), ("cooperative", 128, 256), ("cooperative", 256, 128),
                ("pingpong", 64, 128), ("pingpong", 64, 256), ("pingpong", 128, 128),
            )
        ),
        Hopper("CUTLASS KernelTma", 64, 128, 64, 0, "none", (1, 1), registers="none", refused="left_out",
               because="a warp of the producer copies ahead"),
        Hopper("CUTLASS stream-K", 128, 128, 64, 0, more={"persistent": "stream_k"}, refused="left_out",
               because="cuts k into parts that are alike"),
        Hopper("CUTLASS StagesC, loaded by a warp of its own", 128, 128, 64, 0, "epilogue_warp",
               refused="left_out", because="consumers load their own elements"),
        Hopper("CUTLASS ReuseSmemC", 128, 128, 64, 0, more={"store": "tma_in_ring"}, refused="left_out",
               because="next tile is loaded there"),
        Hopper("CUTLASS programmatic dependent launch", 128, 128, 64, 0,
               more={"persistent": "dependent_launch"}, refused="left_out", because="caller's stream"),
        Hopper("DeepGEMM compiled_dims", 128, 128, 64, 0, more={"persistent": "sizes_compiled_in"},
               refused="left_out", because="serves no sweep"),
    ]  # fmt: skip
    return rows


def _quack() -> list[Hopper]:
    """Its autotuned set for sm_90, both orientations, clusters of two either way."""
    rows = []
    for cluster in ((1, 2), (2, 1)):
        for swap in (False, True):
            more = {"swap_ab": swap}
            for bm, bn in ((256, 128), (256, 160), (256, 192), (256, 208), (128, 224), (128, 256)):
                registers = HEAVY if bm * bn >= 256 * 192 else TWO
                rows.append(Hopper("quack", bm, bn, 64, 0, "cooperative", (2, 1), cluster, registers, more))
            for bm, bn in ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128)):
                registers = HEAVY if bm * bn >= 128 * 192 else TWO
                rows.append(Hopper("quack", bm, bn, 64, 0, "pingpong", (2, 1), cluster, registers, more))
    rows.append(Hopper("quack default", 128, 192, 64, 0, "pingpong", (2, 1), (2, 1), HEAVY))
    return rows


def _union() -> list[Hopper]:
    """What the union of all sm_90 kernels has besides: ways out, hints, parts of k, bands and rasters, each
    value of each; for the roles that carry them, one tile each."""
    roles: tuple[dict[str, Any], ...] = (
        {"bm": 128, "bn": 128, "hand_off": "cooperative", "consumers": (2, 1), "registers": TWO},
        {"bm": 64, "bn": 128, "hand_off": "pingpong", "consumers": (2, 1), "registers": TWO},
        {"bm": 64, "bn": 128, "hand_off": "cooperative", "consumers": (1, 1), "registers": "40/248"},
        {"bm": 192, "bn": 128, "hand_off": "cooperative", "consumers": (3, 1), "registers": THREE},
        {"bm": 128, "bn": 256, "hand_off": "cooperative", "consumers": (1, 2), "registers": HEAVY,
         "cluster": (2, 1)},
    )  # fmt: skip
    ways: list[dict[str, Any]] = [
        *({"store_panels": panels, "store_columns": 16} for panels in (1, 2, 3, 4)),
        *({"hint_a": a, "hint_b": b} for a, b in product(("none", "first", "last"), repeat=2)),
        *({"promotion": promoted} for promoted in (0, 64, 128, 256)),
        *({"group": g, "raster": r} for g, r in product((1, 2, 4, 8, 16), ("m", "n", "hilbert"))),
        *({"store": store, "store_columns": 32} for store in ("direct", "staged")),
        *(
            {"split_k": n, "split_sum": way, "store": store, "store_columns": 32}
            for n in range(2, 9)
            for way, stores in (("last", ("tma", "direct")), ("second", ("staged", "direct")))
            for store in stores
        ),
    ]
    return [
        Hopper("union of the sm_90 column", bk=64, stages=0, more=way, **role)
        for role, way in product(roles, ways)
    ]


SM90: tuple[Hopper, ...] = (
    Hopper(
        "fast.cu 10 to 12", 128, 256, 64, 3, "cooperative", (2, 1), (2, 1), HEAVY,
        {"raster": "hilbert", "group": 16, "store": "tma", "promotion": 0, "persistent": True},
    ),
    Hopper(
        "fast.cu, 128 blocks on 132 SMs", 128, 256, 64, 3, "cooperative", (2, 1), (2, 1), HEAVY,
        {"persistent": "fewer_blocks"}, refused="left_out", because="grid is the device's SMs",
    ),
    Hopper("fast.cu, one consumer", 64, 256, 64, 3, consumers=(1, 1), registers="24/256"),
    Hopper("fast.cu, three consumers", 192, 128, 64, 3, consumers=(3, 1), registers=THREE),
    *_deep_gemm(),
    *_cutlass(),
    *(
        Hopper("ThunderKittens 128 x 256", 128, 256, 64, 4, more={"group": group, "raster": "m"})
        for group in (8, 12)
    ),
    Hopper("ThunderKittens 192 x 192", 192, 192, 64, 4, consumers=(3, 1), registers=THREE),
    *_quack(),
    # Rows of A are gathered by four warps, which keep more registers.
    *(Hopper("quack gather-A", bm, bn, 64, 0, registers="56/224")
      for bm, bn in ((128, 192), (128, 256), (256, 128))),
    *(Hopper("quack gather-A, three consumers", 192, bn, 64, 0, consumers=(3, 1), registers="56/152")
      for bn in (128, 192)),
    # Ways to give out tiles and to add parts of k that the union has and we do not.
    Hopper("tiles by an atomic counter", 128, 128, 64, 4, more={"persistent": "dynamic"},
           refused="left_out", because="a counter to zero before each launch"),
    *(
        Hopper(f"split-K, {way}", 128, 128, 64, 4, more={"split_k": 4, "split_sum": way},
               refused="left_out", because=why)
        for way, why in (
            ("turnstile", "promises no order of blocks"),
            ("atomic", "order in which blocks arrive"),
            ("tma_reduce", "order of arrival"),
        )
    ),
    # nvMatmulHeuristics' first choices for H100: tile, stages, cluster.
    Hopper("nvMMH 4096^3", 256, 128, 64, 4, cluster=(1, 2)),
    Hopper("nvMMH 4096^3, tie", 128, 256, 64, 4, cluster=(2, 1), more={"raster": "n"}),
    Hopper("nvMMH 4096x2112x7168", 128, 192, 128, 2, cluster=(4, 1), more={"raster": "n"}),
    Hopper("nvMMH 4096x2112x7168, tie", 128, 192, 64, 5, cluster=(4, 1),
           more={"raster": "n", "store": "direct"}),
    Hopper("nvMMH 128x7168x16384", 64, 128, 128, 4, consumers=(1, 1), cluster=(1, 4), registers="40/248"),
    Hopper("nvMMH 128x7168x16384, tie", 64, 128, 64, 8, consumers=(1, 1), cluster=(1, 4), registers="40/248"),
    Hopper("nvMMH 64x24576x1536", 64, 192, 128, 3, consumers=(1, 1), cluster=(1, 2), registers="40/248"),
    Hopper("nvMMH 64x24576x1536, tie", 64, 192, 64, 6, consumers=(1, 1), cluster=(1, 2), registers="40/248"),
    # Seven stages of 32 KiB leave nothing for what is on its way out.
    Hopper("nvMMH 64x24576x1536, tie", 64, 192, 64, 7, consumers=(1, 1), cluster=(1, 2), registers="40/248",
           more={"store": "direct"}),
    Hopper("nvMMH 1x4096x7168", 64, 32, 128, 8, consumers=(1, 1), cluster=(1, 2), registers="40/248"),
    # Tilus' Hopper space.
    *(
        Hopper("Tilus v5", bm, bn, bk, stages, more={"group": group},
               refused="registers" if bm == bn == 256 else
               "shared_memory" if stages * (bm + bn) * bk * 2 > 227 * 1024 else "")
        for bm, bn in ((128, 128), (128, 256), (256, 128), (256, 256))
        for bk in (16, 32, 64)
        for stages in (3, 4, 5, 6)
        for group in (4, 8)
    ),
    *_union(),
    Hopper("consumers beside each other", 64, 256, 64, 4, consumers=(1, 2)),
    Hopper("CUTLASS sm90 f16", 128, 256, 64, 0, cluster=(2, 1), dtype="f16"),
)  # fmt: skip
