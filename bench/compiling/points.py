"""Which schedules are compiled by both sides, and by which peer?"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooftile.problem import Problem, parse_problem

from bench.common import BenchError
from search_space.device import Device
from search_space.family import BuildSpec
from search_space.registry import get_family
from search_space.schedule import Schedule, Value

if TYPE_CHECKING:
    from bench.peers.compiled import Compiled


@dataclass(frozen=True)
class Point:
    """What both compilers are told: the tile in elements, the stages, the warps that multiply. `values`: how
    our family says the warps, and what the peer has no word for."""

    bm: int
    bn: int
    bk: int
    stages: int
    warps: int
    values: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        more = " ".join(f"{name}={value}" for name, value in self.values)
        return f"{self.bm}x{self.bn}x{self.bk}, {self.stages} stages, {self.warps} warps, {more}"


@dataclass(frozen=True)
class Comparison:
    """Our family beside Triton's matmul on one arch; figures end in `suffix`. `opcodes`: what both PTX texts
    must hold, or it is not the same work."""

    suffix: str
    family: str
    arch: str
    problem: dict[str, Any]
    points: tuple[Point, ...]
    quick: tuple[int, ...]
    warm: Point
    opcodes: tuple[str, ...]
    peer: str
    """Of bench.peers; it has `compile_matmul(capability, bm, bn, bk, stages, warps)`."""
    capability: int

    def chosen(self, quick: bool) -> tuple[Point, ...]:
        """The points of a run."""
        return tuple(self.points[i] for i in self.quick) if quick else self.points

    def triton(self) -> Callable[[Point], Compiled]:
        """Compiles a point with Triton. BenchError where that is not installed."""
        try:
            module = importlib.import_module(f"bench.peers.{self.peer}")
        except ImportError as error:
            raise BenchError(
                f"the peer triton is missing ({error}); install it: pip install 'rooftile-server[peers]'"
            ) from None

        def compile_point(point: Point) -> Compiled:
            made: Compiled = module.compile_matmul(
                self.capability, point.bm, point.bn, point.bk, point.stages, point.warps
            )
            for wanted in self.opcodes:
                if wanted not in made.ptx:
                    raise BenchError(f"Triton's kernel for {point} has no {wanted}: not the same work")
            if made.cubin_bytes == 0:
                raise BenchError(f"Triton gave no cubin for {point}")
            return made

        return compile_point

    def build(self, point: Point) -> BuildSpec:
        """What our compiler is asked for."""
        problem, device = self.parsed(), Device.for_arch(self.arch)
        return get_family(self.family).build(problem, device, self.schedule(point))

    def parsed(self) -> Problem:
        """The problem."""
        return parse_problem(self.problem)

    def schedule(self, point: Point) -> Schedule:
        """The family's default with the point's tile. BenchError where that is not legal."""
        family, problem, device = get_family(self.family), self.parsed(), Device.for_arch(self.arch)
        values: dict[str, Value] = {
            "bm": point.bm, "bn": point.bn, "bk": point.bk, "stages": point.stages, "split_k": 1,
            **dict(point.values),
        }  # fmt: skip
        schedule = family.default(problem, device).replace(**values)
        violations = family.check(problem, device, schedule)
        if violations:
            raise BenchError(f"{point} is not legal: {violations[0].message}")
        return schedule


def _sm80(bm: int, bn: int, bk: int, stages: int, warps_m: int, warps_n: int) -> Point:
    return Point(bm, bn, bk, stages, warps_m * warps_n, (("warps_m", warps_m), ("warps_n", warps_n)))


def _sm90(
    bm: int, bn: int, stages: int, consumers: int, registers: str, cluster_m: int = 1, *, turns: bool = False
) -> Point:
    """`turns`: ping-pong; Triton's kernel of the same tile has one warpgroup for each 64 rows."""
    values: tuple[tuple[str, Value], ...] = (
        ("hand_off", "pingpong" if turns else "cooperative"), ("consumers_m", 2 if turns else consumers),
        ("consumers_n", 1), ("cluster_m", cluster_m), ("cluster_n", 1), ("persistent", True),
        ("registers", registers), ("store", "tma"), ("swap_ab", False),
    )  # fmt: skip
    return Point(bm, bn, 64, stages, 4 if turns else 4 * consumers, values)


_BIG = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
AMPERE = Comparison(
    suffix="",
    family="gemm_sm80",
    arch="sm_80",
    problem=_BIG | {"layout": {"b": "kn"}},
    points=(
        _sm80(64, 64, 32, 4, 2, 2),
        _sm80(64, 64, 64, 3, 2, 2),
        _sm80(64, 128, 32, 4, 2, 2),
        _sm80(64, 128, 64, 3, 2, 2),
        _sm80(128, 64, 32, 4, 2, 2),
        _sm80(128, 64, 64, 3, 2, 2),
        _sm80(64, 256, 32, 4, 1, 4),
        _sm80(256, 64, 32, 4, 4, 1),
        _sm80(128, 128, 32, 3, 2, 2),
        _sm80(128, 128, 32, 4, 2, 2),
        _sm80(128, 128, 64, 3, 2, 2),
        _sm80(128, 128, 32, 4, 2, 4),
        _sm80(128, 256, 32, 3, 2, 4),
        _sm80(256, 128, 32, 3, 4, 2),
    ),
    quick=(0, 5, 9, 13),
    warm=_sm80(32, 64, 32, 2, 2, 2),
    opcodes=("cp.async", "mma.sync"),
    peer="triton_matmul",
    capability=80,
)
HOPPER = Comparison(
    suffix="_sm90",
    family="gemm_sm90",
    arch="sm_90a",
    problem=_BIG | {"layout": {"b": "nk"}},
    points=(
        _sm90(64, 64, 4, 1, "40/248"),
        _sm90(64, 128, 4, 1, "40/248"),
        _sm90(64, 128, 4, 1, "40/248", cluster_m=2),
        _sm90(64, 256, 4, 1, "40/248"),
        _sm90(128, 64, 4, 2, "40/232"),
        _sm90(128, 128, 4, 2, "40/232"),
        _sm90(128, 128, 4, 2, "40/232", cluster_m=2),
        _sm90(128, 256, 3, 2, "40/232"),
        _sm90(128, 256, 3, 2, "40/232", cluster_m=2),
        _sm90(256, 128, 3, 2, "40/232"),
        _sm90(256, 128, 3, 2, "40/232", cluster_m=2),
        _sm90(64, 128, 4, 1, "40/232", turns=True),
        _sm90(64, 128, 4, 1, "40/232", cluster_m=2, turns=True),
        _sm90(64, 256, 3, 1, "40/232", turns=True),
    ),
    quick=(0, 5, 8, 12),
    warm=_sm90(64, 64, 2, 1, "40/248"),
    opcodes=("wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier"),
    peer="triton_tma_matmul",
    capability=90,
)
COMPARISONS = (AMPERE, HOPPER)
CUTLASS_POINTS = (HOPPER.points[6], HOPPER.points[8])
"""Those that CUTLASS's cooperative kernel has as well; one takes nvcc the better part of a minute."""
