"""How is a job of a replayed run posted and followed, and what did it cost beside the device?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rooftile.problem import Problem

from bench.common import BenchError
from bench.replay.cluster import Run
from bench.replay.device import replayed_key
from bench.replay.recording import recording
from service.store import jobs, trials
from service.store.enums import TrialState
from service.store.records import TrialRecord

LOOK_S = 1.0
STILL_S = 300.0
"""Without a move for so long a run has failed."""
HUNDRED = 100


@dataclass(frozen=True)
class Job:
    """One that has ended, with its trials in the order in which they ended."""

    id: int
    state: str
    message: str
    trials: tuple[TrialRecord, ...]
    device_s: float
    """Of its trials and races."""
    created_at: datetime
    finished_at: datetime

    @property
    def over_best(self) -> float | None:
        """The best time that it found over the best that was recorded."""
        times = [one.time_us for one in self.trials if one.state is TrialState.MEASURED and one.time_us]
        return min(times) / recording().best_us if times else None


def submit(run: Run, problem: Problem, family: str, count: int, seed: int, token: str | None) -> int:
    """Post a job over HTTP; its number."""
    body = {
        "problem": problem.to_json(),
        "target": {"device": replayed_key()},
        "families": [family],
        "budget": {"trials": count},
        "seed": seed,
        "early_stop": False,
        "force": True,
    }
    answer = run.post("/v1/jobs", body, token)
    return int(str(answer["id"]).rpartition("_")[2])


def follow(run: Run, ids: Sequence[int]) -> list[Job]:
    """Wait until all have ended. BenchError when nothing moves."""
    open_ids, moved_s, left = list(ids), time.monotonic(), -1
    while open_ids:
        time.sleep(LOOK_S)
        run.check()
        with run.database.read() as s:
            found = {job_id: jobs.get(s, job_id) for job_id in open_ids[:20]}
            done = sum(one.count for one in trials.counts(s, job_id=open_ids[0]))
        open_ids = [one for one in open_ids if one not in found or (job := found[one]) is None or job.open]
        if (now := len(open_ids) * 10**9 + done) != left:
            left, moved_s = now, time.monotonic()
        if time.monotonic() - moved_s > STILL_S:
            raise BenchError(f"nothing moved for {STILL_S:.0f} s: {run.log('search')}")
    return [_job(run, job_id) for job_id in ids]


def _job(run: Run, job_id: int) -> Job:
    with run.database.read() as s:
        job = jobs.get(s, job_id)
        rows = jobs.problems(s, job_id)
        found = [one for row in rows for one in trials.of_problem(s, row.id)]
        device_s = sum(trials.spent(s, row.id).device_s for row in rows)
    assert job is not None
    assert job.finished_at is not None
    found = [one for one in found if one.finished_at is not None]
    found.sort(key=lambda one: (one.finished_at, one.id))
    return Job(job_id, str(job.state), job.message, tuple(found), device_s, job.created_at, job.finished_at)


def job_row(run: Run, ended: Sequence[Job], used: Mapping[str, float]) -> dict[str, Any]:
    """What these jobs cost, all together, from the first one's POST to the last one's end."""
    wall_s = (max(job.finished_at for job in ended) - min(job.created_at for job in ended)).total_seconds()
    count = sum(len(job.trials) for job in ended)
    device_s = sum(job.device_s for job in ended)
    store_s = used["search"] + used.get("postgres", 0.0)
    return {
        "shape": run.shape,
        "jobs": len(ended),
        "done": sum(job.state == "done" for job in ended),
        "trials": count,
        "wall_s": wall_s,
        "device_s": device_s,
        "device_ms_per_trial": 1000 * device_s / count,
        "overhead_ms_per_trial": 1000 * (wall_s - device_s) / count,
        "device_busy_share": device_s / wall_s,
        "search_share": store_s / wall_s,
        "cpu_ms_per_trial": {name: 1000 * value / count for name, value in used.items()},
    }


def by_hundred(run: Run, job: Job) -> list[dict[str, float]]:
    """Milliseconds beside the device's for each hundred trials, in the order in which they ended."""
    found = []
    for start in range(HUNDRED, len(job.trials), HUNDRED):
        part = job.trials[start : start + HUNDRED]
        begun, over = job.trials[start - 1].finished_at, part[-1].finished_at
        assert begun is not None
        assert over is not None
        device_s = sum(one.device_s or 0.0 for one in part)
        beside_s = (over - begun).total_seconds() - device_s
        found.append({"from": start, "to": start + len(part), "overhead_ms": 1000 * beside_s / len(part)})
    return found
