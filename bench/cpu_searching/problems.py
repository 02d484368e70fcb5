"""On which problems is the search judged, and which of their neighbours are solved before?

Weights (n, k) of bench/data/real_problems.json, in f32 and as they are stored there, at values of m that
serving sees, small to middle, so that one trial is short. The neighbours have the same weights at other m.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftile.problem import Problem, parse_problem

DATA = Path(__file__).parents[1] / "data" / "real_problems.json"


@dataclass(frozen=True)
class Group:
    """One matrix of weights: the values of m that are judged, and those that are neighbours."""

    row: str
    judged: tuple[int, ...]
    neighbours: tuple[int, ...]


GROUPS = (
    Group("deepseek-v3/router_gate_n256_k7168", (1, 16, 128), (4, 48)),
    Group("gpt-oss/o_proj", (1, 8, 32), (4, 16)),
    Group("gpt-oss/qkv_proj", (2, 16, 64), (8, 32)),
    Group("deepseek-v3/fp8_fused_qkv_a_n2112_k7168", (1, 8, 64), (4, 24)),
)
QUICK = (Group("deepseek-v3/router_gate_n256_k7168", (8, 24), (16,)),)


@dataclass(frozen=True)
class Named:
    """A problem with the name that it has in rows and files."""

    name: str
    problem: Problem


def judged(groups: tuple[Group, ...]) -> list[Named]:
    """What the search is judged on."""
    return [_named(group.row, m) for group in groups for m in group.judged]


def neighbours(groups: tuple[Group, ...]) -> list[Named]:
    """What is solved before, for the searches that may learn from it."""
    return [_named(group.row, m) for group in groups for m in group.neighbours]


def _named(row: str, m: int) -> Named:
    spec = _rows()[row]["problem"]
    layout = {"a": spec["layout"]["a"], "b": spec["layout"]["b"]}
    body = {"op": "gemm", "m": m, "n": spec["n"], "k": spec["k"], "dtype": "f32", "layout": layout}
    return Named(f"{row} m={m}", parse_problem(body))


def _rows() -> dict[str, Mapping[str, Any]]:
    return {row["name"]: row for row in json.loads(DATA.read_text())["problems"]}
