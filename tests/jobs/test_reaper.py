"""Is what a dead worker held given back, once, by one reaper?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta
from typing import Any

from sqlalchemy import update
from support.hands import ARCH, DEVICE, Hands

from service.jobs.advance import advance
from service.jobs.reaper import STALLED_S, Reaper
from service.jobs.submit import submit
from service.search.proposer import Proposer
from service.store import clock, events, jobs, leases, models, trials, workers
from service.store.enums import TrialReason, TrialState, WorkerKind, WorkerState

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}


def started(hands: Hands, proposer: Proposer) -> int:
    body = {"problem": PROBLEM, "target": {"device": DEVICE}, "budget": {"trials": 8}}
    job, _ = submit(hands.db, body)
    advance(hands.db, job.id, proposer)
    return job.id


def states(hands: Hands, job_id: int) -> list[tuple[TrialState, TrialReason | None]]:
    with hands.db.read() as s:
        rows = trials.of_problem(s, jobs.problems(s, job_id)[0].id)
    return [(t.state, t.reason) for t in rows]


def test_a_lease_that_ran_out_is_given_back_and_in_the_end_given_up(both: Hands, proposer: Proposer) -> None:
    job_id = started(both, proposer)
    reaper = Reaper(both.db, "reaper-1", one_host=False)
    for turn in range(3):
        with both.db.begin() as s:
            claims = trials.claim_compile(s, "lost", 1, -1.0, [ARCH])
        assert len(claims) == 1
        assert reaper.reap(100.0 * turn)
        assert not reaper.reap(100.0 * turn + 50)
    found = states(both, job_id)
    assert found[0] == (TrialState.FAILED, TrialReason.WORKER_LOST)
    assert {state for state, _ in found[1:]} == {TrialState.PROPOSED}


def test_only_the_holder_of_the_lease_reaps_every_two_seconds(both: Hands, proposer: Proposer) -> None:
    started(both, proposer)
    first, second = Reaper(both.db, "one", one_host=False), Reaper(both.db, "two", one_host=False)
    first.reap(0.0)
    with both.db.begin() as s:
        assert trials.claim_compile(s, "lost", 1, -1.0, [ARCH])
    assert not second.reap(0.0)
    assert not first.reap(1.0)
    assert first.reap(2.5)


def test_in_one_tree_a_dead_process_is_known_at_once(hands: Hands, proposer: Proposer) -> None:
    job_id = started(hands, proposer)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with hands.db.begin() as s:
        for name, pid in (("dead", gone.pid), ("alive", os.getpid())):
            workers.heartbeat(s, name, WorkerKind.COMPILE, socket.gethostname(), pid, None, WorkerState.BUSY)
            assert trials.claim_compile(s, name, 2, 600.0, [ARCH])
        assert leases.acquire(s, leases.job_lease(job_id), "dead", 600.0)
        assert leases.acquire(s, leases.REAPER, "dead", 600.0)
    Reaper(hands.db, "me", one_host=True).reap(0.0)
    with hands.db.begin() as s:
        rows = trials.of_problem(s, jobs.problems(s, job_id)[0].id)
        assert [t.lease_owner for t in rows[:4]] == [None, None, "alive", "alive"]
        assert workers.get(s, "dead") is None
        assert workers.get(s, "alive") is not None
        assert leases.acquire(s, leases.job_lease(job_id), "me", 1.0)


def test_in_a_cluster_process_ids_say_nothing(hands: Hands, proposer: Proposer) -> None:
    started(hands, proposer)
    with hands.db.begin() as s:
        here = socket.gethostname()
        workers.heartbeat(s, "far", WorkerKind.COMPILE, here, 2**22 - 1, None, WorkerState.BUSY)
        assert trials.claim_compile(s, "far", 2, 600.0, [ARCH])
    assert not Reaper(hands.db, "me", one_host=False).reap(0.0)


def test_a_job_that_stands_still_is_told_of_once(hands: Hands, proposer: Proposer) -> None:
    job_id = started(hands, proposer)
    with hands.db.begin() as s:
        old = clock.now(s) - timedelta(seconds=2 * STALLED_S)
        s.execute(update(models.Event).values(at=old))
    reaper = Reaper(hands.db, "me", one_host=False)
    reaper.reap(0.0)
    reaper.reap(10.0)
    with hands.db.read() as s:
        assert [e.to for e in events.after(s, 0, job_id=job_id)].count("stalled") == 1
