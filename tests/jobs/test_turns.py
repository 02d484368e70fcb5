"""Does a job wait for its device, and take turns on it with others?"""

from __future__ import annotations

from support.hands import DEVICE, OTHER_DEVICE, Hands, connect, disconnect, drive
from support.job_views import job_of, post, rows_of, served, trials_of
from support.store import failed
from support.toy_family import true_us

from service.jobs.advance import advance
from service.search.proposer import Proposer
from service.store import releases
from service.store.database import Database
from service.store.enums import (
    JobState,
    TrialReason,
    TrialState,
)


def test_without_a_device_a_job_ranks_and_releases_nothing(database: Database, proposer: Proposer) -> None:
    hands = Hands(database)
    hands.on_compile = lambda s: failed(TrialReason.COMPILE_ERROR) if s.integer("kc") == 64 else None
    job_id = post(database, target={"arch": "x86-64-v3"}, budget={"trials": 12})
    job = drive(hands, job_id, proposer)
    assert (job.state, job.message) == (JobState.DONE, "compiled, not yet timed")
    states = {t.state for t in trials_of(database, job_id)}
    assert TrialState.RANKED in states
    assert states <= {TrialState.RANKED, TrialState.FAILED}
    with database.read() as s:
        assert releases.listing(s).rows == ()


def test_a_job_waits_for_its_device_and_runs_when_it_comes(database: Database, proposer: Proposer) -> None:
    job_id = post(database)
    assert job_of(database, job_id).state is JobState.WAITING
    assert not advance(database, job_id, proposer)
    connect(database)
    assert drive(Hands(database), job_id, proposer).state is JobState.DONE


def test_a_job_whose_device_goes_waits_and_goes_on(both: Hands, proposer: Proposer) -> None:
    job_id = post(both.db, budget={"trials": 12})
    advance(both.db, job_id, proposer)
    both.compile()
    both.measure(3)
    disconnect(both.db)
    assert drive(both, job_id, proposer).state is JobState.WAITING
    done = [t.id for t in trials_of(both.db, job_id) if t.state is TrialState.MEASURED]
    connect(both.db)
    assert drive(both, job_id, proposer).state is JobState.DONE
    assert len(trials_of(both.db, job_id)) == 12
    assert len(both.measured) == len(set(both.measured)) == 12
    assert set(done) <= set(both.measured)


def test_each_device_has_its_own_search_and_release(database: Database, proposer: Proposer) -> None:
    connect(database, DEVICE, OTHER_DEVICE)
    near, far = Hands(database), Hands(database, device_key=OTHER_DEVICE)
    far.time_us = lambda schedule: 0.5 * true_us(schedule)
    job_id = post(database, target={"devices": [DEVICE, OTHER_DEVICE]}, budget={"trials": 8})
    for _ in range(60):
        advance(database, job_id, proposer)
        for hands in (near, far):
            hands.compile()
            hands.measure()
            hands.race()
        if not job_of(database, job_id).open:
            break
    assert job_of(database, job_id).state is JobState.DONE
    first, second = (served(database, row) for row in rows_of(database, job_id))
    assert first is not None
    assert second is not None
    assert (first.device_key, second.device_key) == (DEVICE, OTHER_DEVICE)
    assert second.time_us < first.time_us
