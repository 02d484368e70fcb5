"""Which families are there, and which of them can compute a problem on an arch?"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from rooftile.problem import LATER_OPS, Problem, nearest_name

from search_space.errors import UnknownFamily
from search_space.family import Family
from search_space.violation import Violation

_MODULES = {
    "gemm_x86": "search_space.plan.gemm_x86",
    "gemm_sm90": "search_space.plan.gemm_sm90",
    "gemm_sm80": "search_space.plan.gemm_sm80",
    "gemm_sm70": "search_space.plan.gemm_sm70",
}
"""name -> module with FAMILY; where several can compute a problem the first is preferred. Imported when first
asked for: a client of one family pays for one."""

_OP_OF = {"gemm_x86": "gemm", "gemm_sm90": "gemm", "gemm_sm80": "gemm", "gemm_sm70": "gemm"}

LATER = (
    "gemm_sm100", "attention_sm80", "attention_sm90",
    "mla_decode_sm90", "attention_sm100", "attention_x86",
)  # fmt: skip
"""Names of families that are spoken for; refused by name until they are built."""


@cache
def get_family(name: str) -> Family:
    """The family of that name."""
    if name in _MODULES:
        family: Family = import_module(_MODULES[name]).FAMILY
        return family
    if name in LATER or name in LATER_OPS:
        raise UnknownFamily(f"{name} is not built yet; there are {', '.join(_MODULES)}")
    meant = nearest_name(name, tuple(_MODULES))
    hint = f"; nearest: {meant}" if meant else ""
    raise UnknownFamily(f"no family {name[:64]!r}; there are {', '.join(_MODULES)}{hint}")


def families() -> dict[str, Family]:
    """Every family by name."""
    return {name: get_family(name) for name in _MODULES}


def families_for(problem: Problem, arch_name: str) -> list[Family]:
    """The families that can compute the problem on that arch."""
    mine = [name for name, op in _OP_OF.items() if op == problem.op]
    return [family for name in mine if not (family := get_family(name)).supports(problem, arch_name)]


def why_not(problem: Problem, arch_name: str) -> list[Violation]:
    """Why no family can; empty when one can."""
    mine = [name for name, op in _OP_OF.items() if op == problem.op]
    if not mine:
        message = f"no family computes {problem.op} yet; there are {', '.join(_MODULES)}"
        return [Violation("no_family_for_op", message, {"op": problem.op, "arch": arch_name})]
    found: list[Violation] = []
    for name in mine:
        violations = get_family(name).supports(problem, arch_name)
        if not violations:
            return []
        found += [Violation(v.rule, f"{name}: {v.message}", v.numbers) for v in violations]
    return found
