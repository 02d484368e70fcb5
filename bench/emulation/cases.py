"""On which schedules and problems of a family is the emulator let loose? A pairwise design.

Every two values of two axes (types, layouts, epilogue, tiles, stages, movements, order...) come together in
some case, as far as the family's rules allow it. Each case is run on many small sizes: ragged rows and
columns, and every count of steps of k from none to two more than there are stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any, TypeAlias

from rooftile.errors import FieldError
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule, Value

_BIG = 4096
_PROBLEM: dict[str, dict[str, tuple[Any, ...]]] = {
    "gemm_sm80": {
        "dtype": ("bf16", "f16", "tf32", "s8", "u8", "e4m3", "e5m2"),
        "a": ("mk", "km"), "b": ("kn", "nk"), "c": ("mn", "nm"),
    },
    "gemm_sm70": {"dtype": ("f16",), "a": ("mk", "km"), "b": ("kn", "nk"), "c": ("mn", "nm")},
    "gemm_sm90": {"dtype": ("bf16", "f16"), "a": ("mk", "km"), "b": ("kn", "nk"), "c": ("mn", "nm")},
}  # fmt: skip
_COMMON: dict[str, tuple[Any, ...]] = {
    "alpha": ("any", "one"),
    "beta": ("zero", "any", "one"),
    "bias": (None, "n"),
    "activation": (None, "relu", "gelu", "gelu_tanh", "silu"),
    "residual": (False, True),
    "out": ("default", "f32"),
    "batch": (1, 2),
}
_ARCHS = {"gemm_sm80": {"e4m3": ("sm_89", "sm_120a", "sm_90a"), "e5m2": ("sm_89", "sm_90a")}}
_DEFAULT_ARCHS = {
    "gemm_sm80": ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a"),
    "gemm_sm70": ("sm_70", "sm_90a"),
    "gemm_sm90": ("sm_90a",),
}
# Tiles are kept small, so that cases stay quick; of what makes the same code only some values are taken.
_MOST_TILE = 128
_SOME: dict[str, dict[str, tuple[Value, ...]]] = {
    "gemm_sm90": {
        "bn": (16, 24, 64, 96, 128, 192), "store_columns": (8, 16, 32, 64), "promotion": (0, 256),
        "hint_a": ("none", "last"), "hint_b": ("none", "first"), "group": (1, 2, 8),
        "bm": (16, 64, 128, 192), "cluster_m": (1, 2, 4), "cluster_n": (1, 2),
    },
}  # fmt: skip


def anchors(family_name: str) -> Iterator[dict[str, Value]]:
    """Of gemm_sm90, values that a case each begins with: each way to share tiles beside each form of cluster,
    the movements out in turn. Pairs alone leave this to chance: so much of it is legal only together."""
    if family_name != "gemm_sm90":
        return
    roles: tuple[dict[str, Value], ...] = (
        {"hand_off": "cooperative", "consumers_m": 1, "bm": 64, "registers": "40/248"},
        {"hand_off": "cooperative", "consumers_m": 2, "bm": 128, "registers": "40/232"},
        {"hand_off": "cooperative", "consumers_m": 1, "consumers_n": 2, "bm": 64, "registers": "40/232"},
        {"hand_off": "cooperative", "consumers_m": 3, "bm": 192, "registers": "32/160"},
        {"hand_off": "pingpong", "consumers_m": 2, "bm": 64, "registers": "40/232"},
    )
    clusters = ((1, 1), (2, 1), (1, 2), (2, 2))
    out: tuple[dict[str, Value], ...] = (
        {"store": "tma", "store_panels": 2},
        {"store": "staged", "store_panels": 1, "swap_ab": True},
        {"store": "direct", "store_panels": 1},
        {"store": "staged", "store_panels": 1, "split_k": 2, "split_sum": "second"},
        {"store": "tma", "store_panels": 1},
        {"store": "direct", "store_panels": 1, "swap_ab": True, "vector": 1},
        {"store": "direct", "store_panels": 1, "split_k": 3, "split_sum": "second"},
    )
    for number, (role, (m, n)) in enumerate(product(roles, clusters)):
        common: dict[str, Value] = {
            "bn": 128,
            "bk": 64,
            "stages": 3,
            "consumers_n": 1,
            "cluster_m": m,
            "cluster_n": n,
        }
        yield {**common, **role, **out[number % len(out)]}


@dataclass(frozen=True)
class EmulatorCase:
    """One schedule for one (large) problem on one arch."""

    family: str
    arch: str
    problem: Gemm
    schedule: Schedule

    def small(self) -> tuple[Gemm, ...]:
        """The sizes it is run on: those of the family's proof, then every count of steps of k."""
        device, family = Device.for_arch(self.arch), get_family(self.family)
        proof = [p for p in family.proof_problems(self.problem, device, self.schedule) if isinstance(p, Gemm)]
        wide = proof[0]
        bk, stages = self.schedule.integer("bk"), _stages(self.schedule)
        valid = family.plan(self.problem, device, self.schedule).valid_for.sizes
        found = list(proof)
        for steps in range(stages + 3):
            # With k split, some parts have nothing to do: that has to be right too.
            k = steps * bk - (steps * 3) % 8 if steps else 0
            m, n = 1 + (wide.m + 7 * steps) // 3, 1 + (wide.n + 5 * steps) // 4
            m, n = (-(-x // valid[s].multiple_of) * valid[s].multiple_of for x, s in ((m, "m"), (n, "n")))
            small = _at(wide, min(m, wide.m), min(n, wide.n), k)
            if small is not None and small not in found:
                found.append(small)
        return tuple(found)


def _stages(schedule: Schedule) -> int:
    return schedule.integer("stages") if "stages" in schedule else 2


def _at(p: Gemm, m: int, n: int, k: int) -> Gemm | None:
    """The problem at other sizes, with the same pitches."""
    try:
        return Gemm(
            m, n, k, p.dtype, batch=p.batch, layout=p.layout, ld=p.ld, align=p.align, scale=p.scale,
            alpha=p.alpha, beta=p.beta, epilogue=p.epilogue,
        )  # fmt: skip
    except FieldError:
        return None


Pair: TypeAlias = frozenset[tuple[str, Any]]


@dataclass(frozen=True)
class Design:
    """The cases of a family, and how many pairs of values they bring together. `refused`: pairs that no legal
    case was found for, in many draws around them; -1 where nobody looked."""

    cases: list[EmulatorCase]
    pairs: int
    covered: int
    refused: int = -1


def design(family_name: str, count: int, seed: int = 0, *, complete: bool = False) -> Design:
    """`count` different legal cases, anchors first: each is the one, of some drawn around a pair of values
    that no case before has, that brings the most pairs that are new. `complete`: and as many more as it takes
    until every pair that the rules allow is in one."""
    family = get_family(family_name)
    rng = Random(seed)
    axes = _axes(family)
    names = sorted(axes)
    missing: set[Pair] = {
        frozenset({(x, v), (y, u)})
        for i, x in enumerate(names)
        for y in names[i + 1 :]
        for v in axes[x]
        for u in axes[y]
    }
    total = len(missing)
    found: dict[str, EmulatorCase] = {}

    def take(wanted: Iterable[Pair]) -> bool:
        best: tuple[tuple[int, int], str, EmulatorCase, set[Pair]] | None = None
        for pair in wanted:
            made = _draw(family, axes, dict(pair), rng)
            if made is None:
                continue
            case, pairs, kept = made
            key = f"{case.arch} {case.problem.key} {case.schedule.key}"
            worth = (kept, len(pairs & missing))
            if key not in found and (best is None or worth > best[0]):
                best = (worth, key, case, pairs)
        if best is None:
            return False
        found[best[1]] = best[2]
        missing.difference_update(best[3])
        return best[0][1] > 0

    for anchor in anchors(family_name):
        if len(found) < count:
            take([frozenset(anchor.items())] * _TRIES)
    for _ in range(4 * count):
        if len(found) >= count:
            break
        ordered = sorted(missing, key=repr)
        take([rng.choice(ordered) if ordered else frozenset() for _ in range(_DRAWS)])
    refused = -1
    if complete:
        hopeless: set[Pair] = set()
        while left := sorted(missing - hopeless, key=repr):
            if not take([left[0]] * _TRIES) or left[0] in missing:
                hopeless.add(left[0])
        refused = len(hopeless & missing)
    return Design(list(found.values()), total, total - len(missing), refused)


_TRIES = 10
_DRAWS = 24


def _draw(
    family: Family, axes: Mapping[str, tuple[Any, ...]], wanted: Mapping[str, Any], rng: Random
) -> tuple[EmulatorCase, set[Pair], int] | None:
    """A legal case with the values in `wanted` where the rules allow it, the pairs that it has, and how many
    of the wanted values."""
    values = {name: rng.choice(choices) for name, choices in axes.items()}
    if rng.random() < 0.6:
        values["split_k"] = 1  # what is not split sees the whole ring
    values |= dict(wanted)
    base = _problem(family, values)
    if base is None:
        return None
    arch, problem = base
    device = Device.for_arch(arch)
    schedule = family.default(problem, device)
    mine = schedule.values()
    # What is wanted at once, if that is legal. Then one value after the other, as long as the schedule stays
    # legal; those that are wanted first.
    whole = schedule.replace(**{name: value for name, value in wanted.items() if name in mine})
    if not family.check(problem, device, whole):
        schedule = whole
    order = [n for n in axes if n in mine]
    rng.shuffle(order)
    order.sort(key=lambda n: (n not in wanted, n != "split_k"))
    kept = set(wanted) if schedule is whole else set()
    for name in order:
        if name in kept:
            continue
        moved = schedule.replace(**{name: values[name]})
        if not family.check(problem, device, moved):
            schedule = moved
    case = EmulatorCase(family.name, arch, problem, schedule)
    final = {n: schedule[n] if n in mine else values[n] for n in axes}
    names = sorted(final)
    pairs = {frozenset({(x, final[x]), (y, final[y])}) for i, x in enumerate(names) for y in names[i + 1 :]}
    return case, pairs, sum(final.get(name) == value for name, value in wanted.items())


def _axes(family: Family) -> dict[str, tuple[Any, ...]]:
    """Of the problem as they stand; of the schedule as the family offers them for a plain problem, tiles
    cut."""
    plain = Gemm(_BIG, _BIG, _BIG, "f16", beta="any")
    arch = _DEFAULT_ARCHS[family.name][0]
    axes = dict(_PROBLEM[family.name]) | dict(_COMMON)
    for p in family.parameters(plain, Device.for_arch(arch)):
        choices: tuple[Value, ...] = p.choices
        if p.name in _SOME.get(family.name, ()):
            choices = tuple(c for c in _SOME[family.name][p.name] if c in p.choices)
        elif p.name in ("bm", "bn"):
            choices = tuple(c for c in choices if isinstance(c, int) and c <= _MOST_TILE)
        if p.name == "stages":
            choices = tuple(c for c in choices if isinstance(c, int) and c <= 5)
        if p.name == "split_k":
            choices = (1, 1, 2, 3, 7)
            choices = tuple(dict.fromkeys(choices))
        if len(choices) > 1:
            axes[p.name] = choices
    return axes


def _problem(family: Family, values: Mapping[str, Any]) -> tuple[str, Gemm] | None:
    """Arch and problem of these values; None where there is no such problem, or the family refuses it."""
    dtype = values["dtype"]
    whole = dtype in ("s8", "u8")
    activation = values["activation"] if not whole else ("relu" if values["activation"] else None)
    types: Any = {"a": dtype}
    if values["out"] == "f32" and not whole:
        types["c"] = "f32"
    try:
        problem = Gemm(
            _BIG, _BIG, _BIG, types, batch=values["batch"],
            layout={"a": values["a"], "b": values["b"], "c": values["c"]},
            alpha=values["alpha"], beta=values["beta"],
            epilogue={"bias": values["bias"], "activation": activation, "residual": values["residual"]},
        )  # fmt: skip
    except FieldError:
        return None
    archs = _ARCHS.get(family.name, {}).get(dtype, _DEFAULT_ARCHS[family.name])
    # Spread over the archs by what else is in the case, the same way every time.
    arch = archs[sum(map(ord, problem.key)) % len(archs)]
    if family.supports(problem, arch):
        return None
    return arch, problem
