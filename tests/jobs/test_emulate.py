"""What does a job do with the emulator's word: without a device, beside one, and under each policy?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from support import toy_gpu_family
from support.hands import GPU_DEVICE, Hands, connect, drive
from support.job_views import job_of, rows_of, trials_of
from support.store import emulated
from support.toy_family import ToyFamily, only_family, true_us

from search_space.schedule import Schedule
from service.jobs import proving, ranking
from service.jobs import releases as decisions
from service.jobs.advance import advance
from service.jobs.errors import IllegalMove
from service.jobs.submit import submit
from service.search.proposer import Proposer
from service.store import clock, emulations, events, jobs, races, releases, trials, workers
from service.store.database import Database
from service.store.enums import (
    EmulationScope,
    EmulationState,
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    ReleaseState,
    TrialReason,
    TrialState,
    Winner,
    WorkerKind,
    WorkerState,
)
from service.store.models import Emulation
from service.store.records import JobRecord, ReleaseRecord, Undecided

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}
TRIALS = 24


@pytest.fixture(autouse=True)
def toy_family() -> Iterator[ToyFamily]:
    with only_family(toy_gpu_family.NAME, toy_gpu_family.__name__) as family:
        yield family


@pytest.fixture
def gpu(hands: Hands) -> Hands:
    connect(hands.db, GPU_DEVICE)
    hands.device_key = GPU_DEVICE
    return hands


def post(hands: Hands, target: dict[str, str], **changes: Any) -> int:
    body = {"problem": PROBLEM, "target": target, "budget": {"trials": TRIALS}, "force": True, **changes}
    return submit(hands.db, body)[0].id


def rank(hands: Hands, proposer: Proposer, **changes: Any) -> JobRecord:
    return drive(hands, post(hands, {"arch": "sm_80"}, **changes), proposer)


def race(hands: Hands, proposer: Proposer, **changes: Any) -> JobRecord:
    return drive(hands, post(hands, {"device": GPU_DEVICE}, **changes), proposer)


def structures(hands: Hands, job: JobRecord) -> set[str]:
    return {row.structure_key for row in trials_of(hands.db, job.id) if row.structure_key is not None}


def wrong_where(**values: Any) -> Any:
    """Schedules that have these values are wrong in the emulator."""

    def judge(schedule: Schedule) -> Any:
        mine = schedule.values()
        return emulated(False) if all(mine[name] == value for name, value in values.items()) else None

    return judge


def newest(database: Database) -> ReleaseRecord:
    with database.read() as s:
        rows = [releases.get(s, number) for number in range(1, 10)]
    return [row for row in rows if row is not None][-1]


# ---------------------------------------------------------------- without a device


def test_without_an_emulate_worker_an_arch_alone_waits_and_says_so(both: Hands, proposer: Proposer) -> None:
    job_id = post(both, {"arch": "sm_80"})

    def beat(kind: WorkerKind) -> None:
        with both.db.begin() as s:
            workers.heartbeat(s, f"{kind}-1", kind, "far", 1, None, WorkerState.IDLE, {"archs": ["sm_80"]})

    beat(WorkerKind.COMPILE)
    advance(both.db, job_id, proposer)
    both.compile()
    advance(both.db, job_id, proposer)
    assert job_of(both.db, job_id).state is JobState.RUNNING
    with both.db.begin() as s:
        s.execute(update(Emulation).values(created_at=clock.now(s) - timedelta(hours=1)))
    advance(both.db, job_id, proposer)
    waiting = job_of(both.db, job_id)
    assert (waiting.state, waiting.reason) == (JobState.WAITING, JobReason.NO_WORKER)
    assert "rooftile worker emulate" in waiting.message
    beat(WorkerKind.EMULATE)
    assert drive(both, job_id, proposer).state is JobState.DONE


def test_an_arch_alone_is_compiled_emulated_and_ranked(both: Hands, proposer: Proposer) -> None:
    job = rank(both, proposer)
    assert (job.state, job.message) == (JobState.DONE, "compiled and emulated, not yet timed")
    rows = trials_of(both.db, job.id)
    assert {row.state for row in rows} == {TrialState.RANKED}
    found = structures(both, job)
    # Each structure once, and each of the best four itself.
    best = sorted(rows, key=lambda row: (row.predicted_us or 0.0, row.number))[:4]
    own = {row.id for row in best}
    with both.db.read() as s:
        runs = {row.id: emulations.of_trial(s, row.id) for row in rows}
        assert releases.listing(s).rows == ()
    firsts = {run.trial_id for run in runs.values() if run and run.scope is EmulationScope.STRUCTURE}
    assert len(both.emulated) == len(set(both.emulated))
    assert len(both.emulated) <= len(found) + 4
    assert set(both.emulated) == own | firsts | {run.trial_id for run in runs.values() if run}
    assert all(run is not None and run.state is EmulationState.PASSED for run in runs.values())
    assert all(run is not None and run.trial_id == one for one, run in runs.items() if one in own)
    with both.db.read() as s:
        told = [one.to for one in events.after(s, 0, job_id=job.id, limit=1000) if one.kind == "job_problem"]
    assert told[-2:] == ["proving", "done"]


def test_a_wrong_structure_is_paid_for_once_and_never_ranked(both: Hands, proposer: Proposer) -> None:
    both.on_emulate = wrong_where(way="rows")
    job = rank(both, proposer)
    assert job.state is JobState.DONE
    rows = trials_of(both.db, job.id)
    bad = [row for row in rows if row.schedule["order"]["way"] == "rows"]
    assert len(bad) > 2
    assert {(row.state, row.reason) for row in bad} <= {
        (TrialState.FAILED, TrialReason.RACE),
        (TrialState.REJECTED, TrialReason.QUARANTINED),
    }
    assert {row.state for row in rows if row not in bad} == {TrialState.RANKED}
    assert len([one for one in both.emulated if one in {row.id for row in bad}]) == len(
        {row.structure_key for row in bad}
    )


def test_never_and_finalists_and_all(hands: Hands, proposer: Proposer) -> None:
    job = rank(hands, proposer, emulate="never")
    assert (job.state, job.message) == (
        JobState.DONE,
        "compiled, not yet timed; nor emulated, as was asked",
    )
    assert hands.emulated == []
    job = rank(hands, proposer, emulate="finalists")
    assert job.message == "compiled and emulated, not yet timed"
    assert len(hands.emulated) == proving.FINALISTS
    hands.emulated.clear()
    job = rank(hands, proposer, emulate="all")
    assert sorted(hands.emulated) == sorted(row.id for row in trials_of(hands.db, job.id))


def test_a_wrong_finalist_gives_its_place_to_the_next(hands: Hands, proposer: Proposer) -> None:
    judged: list[str] = []

    def judge(schedule: Schedule) -> Any:
        judged.append(schedule.key)
        return emulated(False) if len(judged) <= 2 else None

    hands.on_emulate = judge
    job = rank(hands, proposer, emulate="finalists")
    assert (job.state, job.message) == (JobState.DONE, "compiled and emulated, not yet timed")
    with hands.db.read() as s:
        best = trials.ranked(s, rows_of(hands.db, job.id)[0].id, proving.FINALISTS)
        assert all(proving.proof(s, row) is proving.Proof.PROVEN for row in best)
    assert {row.state for row in trials_of(hands.db, job.id)} == {TrialState.RANKED, TrialState.FAILED}


def test_when_everything_is_wrong_the_job_says_so_after_a_bounded_number_of_runs(
    hands: Hands, proposer: Proposer
) -> None:
    hands.on_emulate = wrong_where()
    job = rank(hands, proposer, emulate="finalists")
    assert len(hands.emulated) <= ranking.RUNS_MOST
    assert job.state is JobState.FAILED
    assert job.reason is JobReason.NO_PASSING_TRIAL
    assert "race" in job.message


def test_runs_of_finalists_are_bounded(
    hands: Hands, proposer: Proposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "RUNS_MOST", 3)
    hands.on_emulate = wrong_where()
    job = rank(hands, proposer, emulate="finalists")
    assert len(hands.emulated) == 3
    assert not job.open


def test_what_cannot_be_emulated_is_told(hands: Hands, proposer: Proposer) -> None:
    hands.on_emulate = lambda schedule: Undecided(TrialReason.NOT_EMULATED, {"message": "line 3"})
    job = rank(hands, proposer, emulate="finalists")
    assert job.state is JobState.DONE
    assert job.message == "compiled, not yet timed; the emulator's verdict is there for 0 of the best 4"
    job = rank(hands, proposer)
    assert job.state is JobState.FAILED
    assert "not_emulated" in job.message


def test_a_job_without_time_left_does_not_wait_for_finalists(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands, {"arch": "sm_80"}, emulate="finalists", budget={"trials": 4, "seconds": 100})
    for _ in range(20):
        advance(hands.db, job_id, proposer, owner="test")
        hands.compile()
    (row,) = rows_of(hands.db, job_id)
    assert row.state is JobProblemState.PROVING
    with hands.db.begin() as s:
        jobs.set_budget(s, row.id, trials=4, seconds=1e-9, device_seconds=None)
    job = drive(hands, job_id, proposer)
    assert job.state is JobState.DONE
    assert hands.emulated == []


# ---------------------------------------------------------------- beside a device


def test_a_race_is_judged_when_its_verdicts_are_there(both: Hands, proposer: Proposer) -> None:
    connect(both.db, GPU_DEVICE)
    both.device_key = GPU_DEVICE
    gpu = both
    job_id = post(gpu, {"device": GPU_DEVICE}, emulate="finalists")
    for _ in range(60):
        advance(gpu.db, job_id, proposer, owner="test")
        if not (gpu.compile() or gpu.measure() or gpu.race()):
            break
    (row,) = rows_of(gpu.db, job_id)
    assert row.state is JobProblemState.RACING
    assert len(gpu.races) == 1
    assert not advance(gpu.db, job_id, proposer, owner="test")
    job = drive(gpu, job_id, proposer)
    assert job.state is JobState.DONE
    release = newest(gpu.db)
    assert (release.state, release.unproven, release.winner) == (
        ReleaseState.PUBLISHED,
        False,
        Winner.TRIAL,
    )
    assert release.trial_id in gpu.emulated


def test_who_won_the_race_and_is_then_found_wrong_is_not_released(gpu: Hands, proposer: Proposer) -> None:
    job_id = post(gpu, {"device": GPU_DEVICE}, emulate="finalists")
    for _ in range(60):
        advance(gpu.db, job_id, proposer, owner="test")
        if not (gpu.compile() or gpu.measure() or gpu.race()):
            break
    with gpu.db.read() as s:
        (race_of,) = races.of_job(s, job_id)
    best = min(
        (one for one in race_of.entrants if one.trial_id is not None and one.measurement is not None),
        key=lambda one: one.measurement.median_us if one.measurement else 0.0,
    )
    keys = {row.id: row.schedule_key for row in trials_of(gpu.db, job_id)}
    wrong = keys[best.trial_id or 0]
    gpu.on_emulate = lambda schedule: emulated(False) if schedule.key == wrong else None
    assert drive(gpu, job_id, proposer).state is JobState.DONE
    release = newest(gpu.db)
    assert release.state is ReleaseState.PUBLISHED
    assert release.trial_id != best.trial_id
    assert release.schedule_key != wrong


def test_the_fastest_is_not_released_when_the_emulator_finds_it_wrong(
    gpu: Hands, proposer: Proposer
) -> None:
    job = race(gpu, proposer)
    fastest = newest(gpu.db)
    assert fastest.schedule is not None
    way = fastest.schedule["order"]["way"]
    with gpu.db.begin() as s:
        releases.withdraw(s, fastest.id, "to begin anew")
    gpu.on_emulate = wrong_where(way=way)
    gpu.toolchain = {"compiler": "nvrtc", "version": "14"}  # whose verdicts are its own
    job = race(gpu, proposer)
    assert job.state is JobState.DONE
    found = newest(gpu.db)
    assert found.id != fastest.id
    assert found.schedule is not None
    assert found.schedule["order"]["way"] != way
    rows = [row for row in trials_of(gpu.db, job.id) if row.schedule["order"]["way"] == way]
    assert {row.state for row in rows} <= {TrialState.FAILED, TrialState.CULLED}
    assert all(row.time_us is None for row in rows if row.state is TrialState.FAILED)


def test_with_never_an_admin_may_publish_marked_unproven_until_somebody_proves_it(
    gpu: Hands, proposer: Proposer
) -> None:
    job = race(gpu, proposer, emulate="never")
    assert job.state is JobState.DONE
    made = newest(gpu.db)
    assert (made.state, made.unproven) == (ReleaseState.CANDIDATE, True)
    assert f"Release {made.id} is not served" in job.message
    with gpu.db.begin() as s:
        shown = decisions.publish_candidate(s, made.id)
    assert (shown.state, shown.unproven) == (ReleaseState.PUBLISHED, True)
    with gpu.db.begin() as s:
        assert decisions.publish_candidate(s, made.id).id == made.id
    # A later job has the structure run: the mark goes.
    race(gpu, proposer)
    with gpu.db.read() as s:
        after = releases.get(s, made.id)
    assert after is not None
    assert not after.unproven


def test_a_candidate_that_is_known_to_be_wrong_is_never_published(gpu: Hands, proposer: Proposer) -> None:
    race(gpu, proposer, emulate="never")
    made = newest(gpu.db)
    gpu.on_emulate = wrong_where()
    rank(gpu, proposer)
    with gpu.db.begin() as s, pytest.raises(IllegalMove, match="quarantined"):
        decisions.publish_candidate(s, made.id)


def test_a_served_release_is_withdrawn_when_its_structure_is_found_wrong(
    gpu: Hands, proposer: Proposer
) -> None:
    race(gpu, proposer, emulate="never")
    made = newest(gpu.db)
    with gpu.db.begin() as s:
        decisions.publish_candidate(s, made.id)
    gpu.on_emulate = wrong_where()
    rank(gpu, proposer)
    with gpu.db.begin() as s:
        decisions.withdraw_quarantined(s)
        after = releases.get(s, made.id)
    assert after is not None
    assert after.state is ReleaseState.WITHDRAWN


def test_no_verdict_to_be_had_leaves_a_candidate(gpu: Hands, proposer: Proposer) -> None:
    gpu.on_emulate = lambda schedule: Undecided(TrialReason.EMULATE_TIMEOUT, {"message": "60 s"})
    job = race(gpu, proposer)
    assert job.state is JobState.DONE
    made = newest(gpu.db)
    assert (made.state, made.unproven) == (ReleaseState.CANDIDATE, True)
    # the device had the last word on the trials themselves
    assert {row.state for row in trials_of(gpu.db, job.id)} <= {TrialState.MEASURED, TrialState.CULLED}


def test_a_race_waits_for_its_verdicts_only_so_long(gpu: Hands, proposer: Proposer) -> None:
    job_id = post(
        gpu, {"device": GPU_DEVICE}, emulate="finalists", budget={"trials": 12, "seconds": 1000}
    )
    for _ in range(60):
        advance(gpu.db, job_id, proposer, owner="test")
        if not (gpu.compile() or gpu.measure() or gpu.race()):
            break
    (row,) = rows_of(gpu.db, job_id)
    assert row.state is JobProblemState.RACING
    with gpu.db.begin() as s:
        # as if it had run for longer than its seconds and the grace
        jobs.remember(s, row.id, {**row.search, "ran_s": -1000.0 - proving.GRACE_S - 1})
    for _ in range(5):
        advance(gpu.db, job_id, proposer, owner="test")
    (row,) = rows_of(gpu.db, job_id)
    assert (row.state, row.reason) == (JobProblemState.DONE, JobProblemReason.BUDGET_TRIALS)
    made = newest(gpu.db)
    assert (made.state, made.unproven) == (ReleaseState.CANDIDATE, True)


def test_the_toy_times_differ() -> None:
    """Or the tests above would choose among equals."""
    with only_family(toy_gpu_family.NAME, toy_gpu_family.__name__) as family:
        from rooftile.problem import parse_problem

        from search_space.device import Device

        first = family.default(parse_problem(PROBLEM), Device.for_arch("sm_80"))
    assert true_us(first) != true_us(first.replace(mr=6))
