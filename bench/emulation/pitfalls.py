"""Which mistakes did others make in kernels like gemm_sm90? Are we right, or refuse by a rule, just there?

Each has a name, the schedule and the sizes at which it showed in somebody's kernel (issue trackers of Triton,
CUTLASS, DeepGEMM, quack, tilelang, FlagGems, ThunderKittens), shrunk where a run would take minutes: tiles,
stages and what is ragged stay. Those that no kernel of ours can make, since a rule refuses them, name it.
Offsets past 2^31 are in tests/kernel/test_gemm_sm90_emulated.py: buffers of that size are not for a bench.

What holds by construction, whatever the schedule: tiles are counted in grid.x alone, which ends at 2^31 - 1,
not at 65535; barriers and shared memory depend on stages and tiles, not on k (tests/bench/test_pitfalls.py
looks at both). Stages begin where the pattern of their swizzle does (static_assert of the template). Padding
between rows and what lies behind the last is no memory at all in the emulator, so that reading it is accused;
shared memory that nobody wrote holds NaN. A result has neighbours along one of its dimensions: other strides
the client refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftile.problem import Gemm

from search_space.device import Device
from search_space.family import Family
from search_space.registry import families_for, get_family
from search_space.schedule import Schedule, Value

FAMILY, ARCH = "gemm_sm90", "sm_90a"
_BIG = 4096
_UNIT = 8
"""Elements of 16 bits in the 16 bytes that TMA wants pitches to be multiples of."""

BASE: dict[str, Value] = {
    "bm": 64, "bn": 64, "bk": 64, "stages": 3, "cluster_m": 1, "cluster_n": 1, "store": "direct", "vector": 2,
    "store_columns": 32, "store_panels": 1, "promotion": 0, "hint_a": "none", "hint_b": "none",
    "swizzle_a": 128, "swizzle_b": 128, "swap_ab": False, "hand_off": "cooperative", "consumers_m": 1,
    "consumers_n": 1, "registers": "40/248", "persistent": True, "raster": "m", "group": 2, "split_k": 1,
    "split_sum": "last",
}  # fmt: skip
_TMA: dict[str, Value] = {"store": "tma", "store_columns": 32, "store_panels": 2}
_TWO: dict[str, Value] = {"bm": 128, "consumers_m": 2, "registers": "40/232"}
_STAGED: dict[str, Value] = {"store": "staged", "store_columns": 32, "vector": 8}
_TURNS: dict[str, Value] = {"hand_off": "pingpong", "consumers_m": 2, "registers": "40/232"}
_THREE: dict[str, Value] = {"bm": 192, "consumers_m": 3, "registers": "32/160"}
_EPILOGUE: dict[str, Any] = {
    "beta": "one", "epilogue": {"bias": "n", "activation": "gelu", "residual": True},
}  # fmt: skip
_NK = {"layout": {"a": "mk", "b": "nk"}}
_NM = {"layout": {"a": "mk", "b": "nk", "c": "nm"}}
_STORES: tuple[tuple[str, dict[str, Value]], ...] = (("straight", {}), ("staged", _STAGED), ("by TMA", _TMA))


@dataclass(frozen=True)
class Pitfall:
    """`problem`: of which the schedule is built. `sizes`: (m, n, k, batch) it must be right at.
    `refused`: the rule that must refuse it instead."""

    name: str
    values: Mapping[str, Value] = field(default_factory=dict)
    problem: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[tuple[int, int, int, int], ...] = ()
    refused: str | None = None
    repeats: int = 1
    """Runs by different seeds of random order, whose results must agree."""

    def family(self) -> Family:
        """gemm_sm90."""
        return get_family(FAMILY)

    def big(self) -> Gemm:
        """What the schedule is built for."""
        plain: dict[str, Any] = {"m": _BIG, "n": _BIG, "k": _BIG, "dtype": "bf16", **_NK}
        return Gemm(**(plain | dict(self.problem)))

    def schedule(self) -> Schedule:
        """The schedule; for a pitfall that is refused, it need not be legal."""
        return self.family().default(_plain(), Device.for_arch(ARCH)).replace(**(BASE | dict(self.values)))

    def small(self) -> tuple[Gemm, ...]:
        """The problems it must be right at."""
        return tuple(self._at(*size) for size in self.sizes)

    def _at(self, m: int, n: int, k: int, batch: int) -> Gemm:
        big = self.big()
        size = {"m": m, "n": n, "k": k}
        rows = {x: size[getattr(big.layout, x)[1]] for x in "abc"}
        # One unit more than a row needs: rows that touch would hide a write past the end of one.
        ld = {x: (-(-length // _UNIT) + 1) * _UNIT for x, length in rows.items()}
        return Gemm(m, n, k, big.dtype, batch=batch, layout=big.layout, ld=ld, align=big.align,
                    alpha=big.alpha, beta=big.beta, epilogue=big.epilogue)  # fmt: skip

    def refusals(self) -> set[str]:
        """Rules that refuse it; another family must take the problem where this one cannot at all."""
        device, problem = Device.for_arch(ARCH), self.big()
        unfit = self.family().supports(problem, ARCH)
        if unfit and not families_for(problem, ARCH):
            raise AssertionError(f"{self.name}: no family takes {problem.title()}")
        schedule = self.schedule()
        offered = {p.name: p.choices for p in self.family().parameters(problem, device)}
        found = {v.rule for v in unfit or self.family().check(problem, device, schedule)}
        return found | {"choice" for name, value in schedule.values().items() if value not in offered[name]}


def _plain() -> Gemm:
    return Pitfall("plain").big()


def _steps(*counts: int) -> tuple[tuple[int, int, int, int], ...]:
    """Three waves and more of tiles, each with so many steps of k, of which the last is ragged."""
    return tuple((64 * 5 - 3, 64 * 3 - 8, count * 64 - (5 if count % 2 else 0), 1) for count in counts)


PITFALLS = (
    # -- shapes and alignment
    Pitfall("a store by TMA writes past the end of a row that is no multiple of 16 bytes", _TMA,
            {"n": 470, "ld": {"c": 480}}, refused="store_tma"),
    Pitfall("the same sizes by masked stores", {}, {}, ((130, 470, 136, 1), (70, 466, 64, 1))),
    Pitfall("rows 65 elements apart", {}, {"ld": {"a": 4097}}, refused="tma"),
    Pitfall("a base off by one element", {}, {"align": {"a": 2}}, refused="tma"),
    Pitfall("a transposed operand whose m is no multiple of 8", {},
            {"m": 4095, "layout": {"a": "km", "b": "nk"}}, refused="tma"),
    Pitfall("k = 500: rows of 1000 bytes", {}, {"k": 500}, refused="tma"),
    Pitfall("k = 500 in rows of 504", {}, {}, ((100, 72, 500, 1),)),
    Pitfall("one row, one column", {}, {}, ((1, 1, 64, 1), (1, 200, 72, 1), (200, 1, 72, 1))),
    Pitfall("m no multiple of 16 with 16-bit matrices stored by the warp", _TWO | _TMA, {},
            ((1752, 72, 584, 1),)),
    *(
        Pitfall(f"a box of the store by TMA larger than the tensor, bm = {values.get('bm', 64)}",
                values | _TMA, {}, ((1, 64, 64, 1), (7, 64, 64, 1), (15, 64, 64, 1)))
        for values in ({}, _TWO)
    ),
    Pitfall("a box of the loads larger than the tensor", _TWO, {}, ((1, 64, 64, 1), (7, 8, 8, 1))),
    # Nothing is launched for an empty result, but the schedule and its plan must take it.
    *(
        Pitfall(f"no rows, no columns, {how}", store | {"cluster_m": 2}, {"beta": "any"},
                ((8, 8, 64, 1), (0, 72, 64, 1), (70, 0, 64, 1), (0, 0, 0, 1)))
        for how, store in _STORES[::2]
    ),
    *(
        Pitfall(f"a transposed result, {how}", store, _NM | {"beta": "any"},
                ((72, 70, 136, 1), (136, 64, 72, 2)))
        for how, store in _STORES
    ),
    Pitfall("a transposed result whose rows are no multiple of 16 bytes, by TMA", _TMA,
            _NM | {"m": 470, "ld": {"c": 480}}, refused="store_tma"),
    Pitfall("a transposed result in rows that a vector does not divide", _STAGED, _NM | {"ld": {"c": 4100}},
            refused="alignment"),
    Pitfall("NaN between rows, behind the last and in rows of a tile that nobody loads",
            _TMA | {"bm": 16, "stages": 2}, {}, ((13, 40, 72, 2), (19, 72, 8, 1))),
    Pitfall("stages of no power of two", _TMA | {"bn": 24, "bk": 32, "swizzle_a": 64, "swizzle_b": 64,
            "store_columns": 8, "stages": 5}, {}, ((70, 56, 232, 1),)),
    Pitfall("few rows and a deep k", {}, {}, ((32, 64, 8192, 1),)),
    Pitfall("n eight more than whole tiles", _TMA, {}, ((64, 64 * 3 + 8, 128, 1),)),
    *(
        Pitfall(f"bn = {bn}, which the parts of the epilogue do not divide alike",
                _TWO | _TMA | {"bn": bn, "store_columns": part}, {}, ((130, 2 * bn - 8, 136, 1),))
        for bn, part in ((224, 32), (192, 64), (208, 16), (176, 16))
    ),
    Pitfall("a tile of 256 columns with one to three steps of k", _TWO | _TMA | {"bn": 256, "stages": 4}, {},
            tuple((130, 264, k, 1) for k in (64, 128, 192))),
    Pitfall("an odd number of steps", {}, {}, ((70, 72, 192, 1), (70, 72, 320, 1))),
    *(
        Pitfall(f"beta = 1 beside every part of the epilogue, {how}", store, _EPILOGUE,
                ((100, 72, 136, 2), (64, 64, 0, 1)))
        for how, store in _STORES
    ),
    *(
        Pitfall(f"beta = 1 beside every part of the epilogue, parts of k summed by the {split}",
                _STAGED | {"split_k": 2, "split_sum": split}, _EPILOGUE, ((100, 72, 136, 1), (64, 64, 0, 1)))
        for split in ("last", "second")
    ),
    # -- hangs and order
    Pitfall("fewer steps than stages", {"stages": 8}, {}, tuple((70, 72, k, 1) for k in (64, 65, 128))),
    Pitfall("parts of k of one step", {"split_k": 8}, {}, ((70, 72, 512, 1),)),
    Pitfall("nothing to sum", {}, {"beta": "any"}, ((70, 72, 0, 2), (300, 200, 0, 1))),
    Pitfall("nothing to sum, in turns", _TURNS | _TMA, {"beta": "any"}, ((300, 200, 0, 1), (70, 72, 0, 2))),
    Pitfall("turns, a cluster and beta = 1", _TURNS | _TMA | {"cluster_m": 2}, _EPILOGUE,
            ((300, 200, 136, 1), (300, 136, 72, 2))),
    Pitfall("turns, a cluster the other way and beta = 1", _TURNS | _TMA | {"cluster_n": 2}, _EPILOGUE,
            ((300, 200, 136, 1),)),
    Pitfall("turns, a cluster of 2 x 2 and beta = 1", _TURNS | _TMA | {"cluster_m": 2, "cluster_n": 2},
            _EPILOGUE, ((300, 200, 136, 1), (70, 8, 72, 1))),
    # A warp that skips setmaxnreg leaves the others to wait for its registers: the producer's idle ones, a
    # consumer without a tile or with nothing to sum, a block outside the result.
    *(
        Pitfall(f"every path of a role gives or takes its registers, {how}", values | {"cluster_m": 2}, {},
                ((10, 8, 64, 1), (70, 72, 0, 1)))
        for how, values in (
            ("all give", {"registers": "24/240"}), ("two take", _TWO), ("three take", _THREE),
            ("in turns", _TURNS | _TMA),
        )
    ),
    Pitfall("few rows, a cluster of 4 x 1 and parts of k", {"cluster_m": 4, "split_k": 4}, {},
            ((8, 72, 328, 1),), repeats=4),
    Pitfall("more blocks wait for parts of k than run at once", {"split_k": 7, "persistent": False}, {},
            ((300, 200, 64 * 15, 2),)),
    Pitfall("sums of parts that depend on who comes first", {"split_k": 3}, {}, ((130, 136, 64 * 7, 1),),
            repeats=4),
    Pitfall("a cluster at the edge, with an odd number of tiles", {"cluster_m": 2}, {},
            ((64 * 3, 64, 200, 1), (64, 64 * 3, 200, 1), (10, 8, 64, 1))),
    Pitfall("a cluster of 2 x 2 at both edges", {"cluster_m": 2, "cluster_n": 2}, {},
            ((64 * 3, 64 * 3, 200, 1), (10, 8, 64, 2))),
    Pitfall("a cluster of eight", {"cluster_m": 8}, {}, ((64 * 9, 64, 264, 1), (10, 8, 136, 1))),
    Pitfall("peers tell each other of stages, again and again", {"cluster_m": 2, "stages": 2}, {},
            ((256, 64, 64 * 12, 1),), repeats=4),
    *(
        Pitfall(f"phases run on from tile to tile, {stages} stages", {"stages": stages}, {},
                _steps(1, 3, 5, 7))
        for stages in (2, 3, 4, 5, 6)
    ),
    *(
        Pitfall(f"phases run on from tile to tile, in turns, {stages} stages", _TURNS | {"stages": stages},
                {}, _steps(1, 3, 5))
        for stages in (2, 3, 5)
    ),
    Pitfall("several loads for one barrier", {"bk": 128, "swizzle_a": 64, "swizzle_b": 32, "stages": 2}, {},
            ((70, 72, 300, 1),)),
    Pitfall("one stage", {"stages": 1}, refused="choice"),
    Pitfall("the same bits in every order", {}, {}, ((130, 136, 64 * 7, 1),), repeats=4),
    # -- limits
    Pitfall("more shared memory than a block has", {"bm": 128, "consumers_m": 2, "bn": 256, "stages": 6},
            refused="shared_memory"),
    Pitfall("a product that does not fit the registers at entry",
            {"bm": 192, "consumers_m": 3, "bn": 256, "registers": "32/160"}, refused="entry_registers"),
    Pitfall("registers that the pool does not have", _TWO | {"registers": "40/248"}, refused="register_pool"),
    Pitfall("a cluster that is not portable", {"cluster_m": 8, "cluster_n": 2}, refused="cluster"),
)  # fmt: skip
