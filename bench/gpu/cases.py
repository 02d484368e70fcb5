"""Which kernels are verified, and at which sizes? Drawn from the shape set that public kernels have failed
at.

M, N and K are the sizes around every tile edge, of real layers, and those that others' kernels got wrong
(vector copies, one step of k, long k); what a plan is not for is skipped by its own `valid_for`. First every
type, layout and epilogue with its default schedule, then schedules drawn from the space, until the time is
spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from typing import Any

from rooftile.errors import RooftileError
from rooftile.problem import Gemm, parse_problem

from search_space import registry
from search_space.device import Device
from search_space.family import Family
from search_space.schedule import Schedule
from search_space.space import Space
from worker.verify.cases import Case, resized, scalar

SHAPES: dict[str, tuple[int, ...]] = {
    "m": (0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 4095),
    "n": (8, 16, 24, 40, 96, 120, 136, 200, 248, 264, 470, 2112, 7168),
    "k": (8, 16, 32, 64, 72, 128, 136, 192, 256, 1152, 4104),
}
SMALL: dict[str, tuple[int, ...]] = {"m": (0, 1, 7, 16, 65), "n": (8, 24, 136), "k": (8, 72, 136)}
SIZES_A_KERNEL = 10
_BIG = 4096
_DTYPES = ("bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "u8", "f32")
_EPILOGUES: tuple[dict[str, Any], ...] = (
    {},
    {"beta": "any", "epilogue": {"bias": "n"}},
    {"beta": "any", "epilogue": {"bias": "n", "activation": "gelu", "residual": True}},
    {"epilogue": {"activation": "relu"}},
    {"beta": "one", "epilogue": {"activation": "silu"}},
)
_LAYOUTS = tuple(product(("mk", "km"), ("nk", "kn"), ("mn", "nm")))
# Pitch beyond packed; with 0 the data ends at the margin.
_PADS = (0, 16)


@dataclass(frozen=True)
class Kernel:
    """One kernel to be verified: a schedule for a large problem, and the sizes it is run at."""

    family: Family
    problem: Gemm
    schedule: Schedule
    cases: tuple[Case, ...]
    base: bool
    """It is the default schedule of its types, layout and epilogue."""

    def title(self) -> dict[str, Any]:
        """What is written of it."""
        p = self.problem
        return {
            "family": self.family.name,
            "dtype": {x: getattr(p.dtype, x) for x in ("a", "b", "acc", "c")},
            "layout": {x: getattr(p.layout, x) for x in "abc"},
            "beta": p.beta,
            "epilogue": asdict(p.epilogue),
            "schedule": self.schedule.one_line(),
        }


def problems(family: Family, arch: str) -> list[Gemm]:
    """Every type, layout and epilogue that the family does on the arch; each type first with its plain
    product."""
    found: list[Gemm] = []
    for number, extra in enumerate(_EPILOGUES):
        for dtype in _DTYPES:
            for a, b, c in _LAYOUTS:
                fields = {"op": "gemm", "m": _BIG, "n": _BIG, "k": _BIG, "dtype": dtype, **extra}
                try:
                    problem = parse_problem({**fields, "layout": {"a": a, "b": b, "c": c}})
                except RooftileError:
                    continue
                # Layouts with each epilogue would be all pairs; after the plain product they take turns.
                if number and (_LAYOUTS.index((a, b, c)) + number) % 4:
                    continue
                if isinstance(problem, Gemm) and not family.supports(problem, arch):
                    found.append(problem)
    return found


def draw(device: Device, seed: int, *, small: bool = False) -> Iterator[Kernel]:
    """Kernels without end: first the defaults, families in turns, then random schedules."""
    chance = Random(seed)
    shapes = SMALL if small else SHAPES
    arch = device.arch.name
    queues = {}
    for name, family in registry.families().items():
        mine = problems(family, arch)
        if mine:
            queues[name] = (family, mine)
    waiting = {name: list(mine) for name, (_, mine) in queues.items()}
    while any(waiting.values()):
        for name, rest in waiting.items():
            if rest:
                family, problem = queues[name][0], rest.pop(0)
                yield _kernel(family, problem, family.default(problem, device), chance, shapes, base=True)
    while queues:
        family, mine = queues[chance.choice(sorted(queues))]
        problem = chance.choice(mine)
        schedule = Space(family, problem, device).random(chance)
        yield _kernel(family, problem, schedule, chance, shapes, base=False)


def count_base(device: Device) -> int:
    """How many kernels `draw` gives with their default schedules."""
    return sum(len(problems(family, device.arch.name)) for family in registry.families().values())


def _kernel(
    family: Family,
    problem: Gemm,
    schedule: Schedule,
    chance: Random,
    shapes: dict[str, tuple[int, ...]],
    *,
    base: bool,
) -> Kernel:
    cases = []
    whole = problem.dtype.acc == "s32"
    for number in range(SIZES_A_KERNEL):
        m, n, k = (chance.choice(shapes[x]) for x in "mnk")
        if number == 0:
            k = 0
        batch = 3 if number == 1 else 1
        pad = chance.choice(_PADS)
        # In whole vectors half of the time: else most kernels would be skipped for their pitches.
        if chance.random() < 0.5:
            n, k = -(-n // 16) * 16, -(-k // 16) * 16
            if problem.layout.a == "km" or problem.layout.c == "nm":
                m = -(-m // 16) * 16
        cases.append(
            Case(
                name=f"{m}x{n}x{k}" + (f"x{batch}" if batch > 1 else "") + (" pitched" if pad else ""),
                problem=resized(problem, m, n, k, batch),
                placement="start" if pad else "end",
                offset=256 if pad else 0,
                seed=chance.randrange(1 << 31),
                alpha=scalar(problem.alpha, 2.0 if whole else chance.choice((1.0, -0.75))),
                beta=scalar(problem.beta, chance.choice((0.0, 1.0))),
                pad=pad,
                align=16,
            )
        )
    return Kernel(family, problem, schedule, tuple(cases), base)
