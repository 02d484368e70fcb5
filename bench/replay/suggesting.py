"""What does a suggestion cost for a family of the product, with so many trials behind it?

Asked as a job asks: a batch of four at a time, told the times of the batch before. The times are the cost
model's with a spread by the schedule's key: no device is asked, so they say nothing of any kernel.
"""

from __future__ import annotations

import time
from typing import Any

from rooftile.problem import Gemm, Problem

from bench.common import say
from search_space.device import Device
from search_space.registry import get_family
from service.jobs.proposing import Ask, Tried
from service.search.proposer import Proposer

BATCH = 4
SPREAD = 0.5
CASES: tuple[tuple[str, str, Problem], ...] = (
    ("gemm_x86", "x86-64-v3", Gemm(8, 4096, 4096, "f32")),
    ("gemm_sm80", "sm_80", Gemm(4096, 4096, 4096, "f16")),
    ("gemm_sm90", "sm_90a", Gemm(4096, 4096, 4096, "f16")),
)


def suggestion_rows(*, quick: bool) -> list[dict[str, Any]]:
    """One row a family."""
    upto = 100 if quick else 1000
    return [_row(*case, upto) for case in CASES]


def _row(name: str, arch: str, problem: Problem, upto: int) -> dict[str, Any]:
    family, device, proposer = get_family(name), Device.for_arch(arch), Proposer()
    done: list[Tried] = []
    each_ms: list[float] = []
    while len(done) < upto:
        ask = Ask(name, problem, device, (name,), 1, upto, BATCH, done=tuple(done))
        started = time.perf_counter()
        proposals = proposer.propose(ask)
        if not proposals:
            break
        each_ms += [1000 * (time.perf_counter() - started) / len(proposals)] * len(proposals)
        for one in proposals:
            key = one.schedule.key
            spread = 1 + SPREAD * int(key[:8], 16) / 2**32
            done.append(
                Tried(one.schedule, key, family.predict(problem, device, one.schedule).time_us * spread)
            )
    hundreds = [each_ms[at : at + 100] for at in range(0, len(each_ms), 100)]
    row = {
        "suggestions": name,
        "trials": len(done),
        "suggestion_ms": sum(each_ms) / len(each_ms),
        "suggestion_ms_most": max(each_ms[100:], default=None),
        "by_hundred_ms": [sum(part) / len(part) for part in hundreds],
    }
    say(f"{name}: {row['suggestion_ms']:.1f} ms a suggestion over {len(done)} trials")
    return row
