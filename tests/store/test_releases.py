"""Is at most one release served, and can it be pinned, rolled back and withdrawn?"""

from __future__ import annotations

import math

import pytest
from sqlalchemy.exc import SQLAlchemyError
from support.store import ARCH, DEVICE, POLICY, POLICY_KEY, TOOLCHAIN, compile_all, running_job

from service.store import artifacts, jobs, quarantines, releases, trials
from service.store.database import Database
from service.store.enums import ArtifactKind, JobState, ReleaseState, TrialReason, Winner
from service.store.errors import ArtifactMismatch, Conflict, IllegalTransition, ReleasePinned, StoreError
from service.store.models import Release
from service.store.records import JobProblemRecord, NewRelease, ReleaseFilter, TrialRecord


def _ready(database: Database, count: int = 3) -> tuple[JobProblemRecord, list[TrialRecord]]:
    with database.begin() as s:
        job_id, _ = running_job(s, count)
        compile_all(s)
        problem = jobs.problems(s, job_id)[0]
        return problem, trials.of_problem(s, problem.id)


def _new(problem: JobProblemRecord, trial: TrialRecord | None, time_us: float = 10.0) -> NewRelease:
    winner = Winner.BASELINE if trial is None else Winner.TRIAL
    return NewRelease(
        problem.id, POLICY, POLICY_KEY, winner, trial.id if trial else None, None, time_us, 15.0
    )


def test_generations_and_rollback(database: Database) -> None:
    problem, (a, b, _) = _ready(database)
    line = (problem.problem_key, DEVICE, POLICY_KEY)
    with database.begin() as s:
        first = releases.create(s, _new(problem, a))
        assert releases.best(s, *line) is None
        releases.publish(s, first.id, "first")
        second = releases.create(s, _new(problem, b, 9.0))
        releases.publish(s, second.id, "faster")
        assert (first.generation, second.generation) == (1, 2)
        served = releases.best(s, *line)
        assert served is not None
        assert (served.id, served.schedule_key, served.plan) == (
            second.id,
            b.schedule_key,
            {"schema": 1, "steps": []},
        )
        back = releases.publish(s, first.id, "rolled back")
        assert (back.state, back.reason, back.ended_at) == (ReleaseState.PUBLISHED, "rolled back", None)
        states = [(one.generation, one.state.value) for one in releases.history(s, *line)]
        assert states == [(2, "superseded"), (1, "published")]
        assert releases.counts(s) == {ReleaseState.PUBLISHED: 1, ReleaseState.SUPERSEDED: 1}


def test_a_baseline_release_has_no_artifact(database: Database) -> None:
    problem, _ = _ready(database, 1)
    with database.begin() as s:
        row = releases.publish(s, releases.create(s, _new(problem, None, 15.0)).id)
        assert (row.winner, row.artifact_sha256, row.schedule, row.plan) == (
            Winner.BASELINE,
            None,
            None,
            None,
        )


def test_the_database_itself_serves_at_most_one(database: Database) -> None:
    problem, (a, b, _) = _ready(database)
    with database.begin() as s:
        first = releases.create(s, _new(problem, a))
        second = releases.create(s, _new(problem, b))
        releases.publish(s, first.id)

    def both() -> None:
        with database.begin() as s:
            s.get_one(Release, second.id).state = ReleaseState.PUBLISHED
            s.flush()

    with pytest.raises(Conflict) as caught:
        both()
    assert isinstance(caught.value.__cause__, SQLAlchemyError)


def test_a_pin_holds_until_it_is_taken_off(database: Database) -> None:
    problem, (a, b, _) = _ready(database)
    with database.begin() as s:
        first = releases.create(s, _new(problem, a))
        with pytest.raises(StoreError, match="only a published one"):
            releases.pin(s, first.id, True)
        releases.publish(s, first.id)
        assert releases.pin(s, first.id, True).pinned
        second = releases.create(s, _new(problem, b))
        with pytest.raises(ReleasePinned):
            releases.publish(s, second.id)
        releases.publish(s, second.id, over_pin=True)
        old = releases.get(s, first.id)
        assert old is not None
        assert (old.state, old.pinned) == (ReleaseState.SUPERSEDED, False)


def test_withdrawn_is_final(database: Database) -> None:
    problem, (a, *_) = _ready(database)
    with database.begin() as s:
        row = releases.publish(s, releases.create(s, _new(problem, a)).id)
        releases.pin(s, row.id, True)
        gone = releases.withdraw(s, row.id, "wrong on device 2")
        assert (gone.state, gone.pinned, gone.reason) == (ReleaseState.WITHDRAWN, False, "wrong on device 2")
        assert releases.withdraw(s, row.id, "again").reason == "wrong on device 2"
        with pytest.raises(IllegalTransition):
            releases.publish(s, row.id)


def test_a_quarantine_finds_the_releases_it_hits(database: Database) -> None:
    problem, (a, b, _) = _ready(database)
    with database.begin() as s:
        hit = releases.publish(s, releases.create(s, _new(problem, a)).id)
        assert releases.quarantined(s) == []
        where = {
            "family": a.family,
            "arch": ARCH,
            "toolchain_key": quarantines.toolchain_key(TOOLCHAIN),
            "reason": TrialReason.WRONG_RESULT,
        }
        one = quarantines.add(s, schedule_key=a.schedule_key, **where)
        assert quarantines.add(s, schedule_key=a.schedule_key, **where).id == one.id
        quarantines.add(s, schedule_key=b.schedule_key, **where)
        assert [row.id for row in releases.quarantined(s)] == [hit.id]
        assert quarantines.holds(s, ARCH, a.schedule_key, where["toolchain_key"])
        assert quarantines.schedule_keys(s, a.family, ARCH) == {a.schedule_key, b.schedule_key}
        assert quarantines.lift(s, one.id)
        assert not quarantines.lift(s, one.id)
        assert releases.quarantined(s) == []
        assert [row.schedule_key for row in quarantines.listing(s)] == [b.schedule_key]


@pytest.mark.parametrize("time_us", [math.nan, math.inf, 0.0, -2.0])
def test_no_release_without_a_real_time(database: Database, time_us: float) -> None:
    problem, (a, *_) = _ready(database)
    with database.begin() as s, pytest.raises(StoreError, match="finite positive"):
        releases.create(s, _new(problem, a, time_us))


def test_lookups_and_filters(database: Database) -> None:
    problem, (a, b, _) = _ready(database)
    with database.begin() as s:
        row = releases.publish(s, releases.create(s, _new(problem, a)).id)
        releases.create(s, _new(problem, b))
        assert [one.id for one in releases.for_problem(s, problem.problem_key)] == [row.id]
        assert releases.for_problem(s, problem.problem_key, POLICY_KEY, "sm_90a") == []
        assert [one for one, _ in releases.for_layer(s, problem.layer_key, DEVICE)] == [row.id]
        assert [one.id for one in releases.several(s, [row.id, 10**6])] == [row.id]
        assert releases.for_layer(s, problem.layer_key, "gpu-x") == []
        assert [one.id for one in releases.listing(s).rows] == [row.id]
        every = ReleaseFilter(states=())
        page = releases.listing(s, every, limit=1)
        assert len(page.rows) == 1
        assert [one.id for one in releases.listing(s, every, after=page.next).rows] == [row.id]
        assert releases.listing(s, ReleaseFilter(op="gemm", dtype="f32", arch=ARCH)).rows
        assert not releases.listing(s, ReleaseFilter(dtype="bf16")).rows
        assert not releases.listing(s, ReleaseFilter(winner=Winner.BASELINE)).rows


def test_released_bytes_outlive_the_pruning_of_their_job(database: Database) -> None:
    problem, (a, b, c) = _ready(database)
    with database.begin() as s:
        releases.publish(s, releases.create(s, _new(problem, a)).id)
        releases.publish(s, releases.create(s, _new(problem, b)).id)  # a may be rolled back to
        assert artifacts.prune(s, problem.job_id) == 0  # c may still be measured
        jobs.move(s, problem.job_id, JobState.CANCELLED)
        trials.cancel_open(s, job_id=problem.job_id)
        assert artifacts.prune(s, problem.job_id) == 1
        assert artifacts.prune(s, problem.job_id) == 0
        stored = {}
        for one in (a, b, c):
            record = artifacts.get(s, one.artifact_sha256 or "")
            assert record is not None
            stored[one.number] = (record.stored, record.size_bytes > 0, record.recipe)
        recipe = {"source": "x86/gemm.c"}
        assert stored == {0: (True, True, recipe), 1: (True, True, recipe), 2: (False, True, recipe)}


def test_artifacts_have_the_hash_they_claim(database: Database) -> None:
    data = b"\x00pool\xff"
    sha = "b1ea5c8e2e7ea1b53dbcc8f0e9b8bd2bfd2bb0c9e6a9a1f26a0c9f5e5d5f7c11"
    with database.begin() as s:
        with pytest.raises(ArtifactMismatch):
            artifacts.put(s, sha, data, ArtifactKind.POOL, {})
        right = artifacts.sha256_of(data).hexdigest()
        artifacts.put(s, right, None, ArtifactKind.POOL, {"c": 1}, ARCH)
        assert artifacts.get_bytes(s, right) is None
        artifacts.put(s, right, data, ArtifactKind.POOL, {"c": 2}, ARCH)
        assert artifacts.get_bytes(s, right) == data
        record = artifacts.get(s, right)
        assert record is not None
        assert (record.stored, record.size_bytes, record.recipe) == (True, len(data), {"c": 1})
        assert artifacts.get(s, sha) is None
