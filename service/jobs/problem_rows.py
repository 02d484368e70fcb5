"""How does the store keep a problem?"""

from __future__ import annotations

from typing import Any

from rooftile.problem import Problem

from service.store.records import ProblemRecord


def problem_record(problem: Problem) -> ProblemRecord:
    """A problem as the store keeps it."""
    dtype: Any = problem.dtype
    pair = (dtype.a, dtype.b) if problem.op == "gemm" else (dtype.q, dtype.kv)
    return ProblemRecord(
        key=problem.key,
        layer_key=problem.layer().key,
        op=problem.op,
        title=problem.title(),
        spec=problem.to_json(),
        dtype=pair[0] if pair[0] == pair[1] else "x".join(pair),
    )
