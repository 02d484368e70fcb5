"""Does a trial get from its proposal to a release, with every move told in order?"""

from __future__ import annotations

import math

import pytest
from support.store import (
    ARCH,
    DEVICE,
    POLICY,
    POLICY_KEY,
    compile_all,
    compiled,
    failed,
    measure_all,
    measured,
    measurement,
    new_job,
    new_trial,
    running_job,
    verdict,
)

from service.store import artifacts, events, jobs, quarantines, races, releases, trials
from service.store.database import Database
from service.store.enums import (
    EntrantRole,
    EventKind,
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    RaceState,
    ReleaseState,
    Stage,
    TrialReason,
    TrialState,
    Winner,
)
from service.store.records import EntrantResult, Failed, NewEntrant, NewRelease, RaceOutcome


def test_the_whole_way(database: Database) -> None:
    with database.begin() as s:
        job_id, proposed = running_job(s, 3)
        assert [trial.number for trial in proposed] == [0, 1, 2]
    with database.begin() as s:
        assert compile_all(s) == 3
    with database.begin() as s:
        ids = measure_all(s, [30.0, 10.0, 20.0])
        problem = jobs.problems(s, job_id)[0]
        best = trials.best(s, problem.id)
        assert best is not None
        assert (best.id, best.time_us) == (ids[1], 10.0)
        assert [trial.time_us for trial in trials.top(s, problem.id, 2)] == [10.0, 20.0]
        assert trials.best_of_job(s, job_id)[problem.id].id == ids[1]
    with database.begin() as s:
        jobs.move_problem(s, problem.id, JobProblemState.RACING, JobProblemReason.BUDGET_TRIALS)
        entrants = [
            NewEntrant("finalist-1", EntrantRole.FINALIST, ids[1]),
            NewEntrant("default", EntrantRole.DEFAULT, ids[0]),
            NewEntrant("twin", EntrantRole.TWIN, ids[1]),
            NewEntrant("openblas", EntrantRole.BASELINE),
        ]
        race = races.create(s, problem.id, entrants, POLICY, seed=5)
    with database.begin() as s:
        claim = races.claim(s, "measurer", DEVICE, 60)
        assert claim is not None
        assert [one.name for one in claim.entrants] == ["finalist-1", "default", "twin", "openblas"]
        assert claim.entrants[0].plan == {"schema": 1, "steps": []}
        assert claim.entrants[3].plan is None
        assert races.claim(s, "other", DEVICE, 60) is None
    results = [
        EntrantResult(one.name, one.role, one.trial_id, measurement(t), verdict(), None)
        for one, t in zip(claim.entrants, [10.5, 30.0, 10.6, 15.0], strict=True)
    ]
    with database.begin() as s:
        assert races.finish(s, claim.claim_id, RaceOutcome(results, {"band": 0.01}, {"load": 0.1}, 2.0))
        assert not races.finish(s, claim.claim_id, RaceOutcome(results, {}, {}))
    with database.read() as s:
        done = races.latest(s, problem.id)
        assert done is not None
        assert (done.id, done.state, done.noise) == (race.id, RaceState.DONE, {"band": 0.01})
        times = [one.measurement.median_us for one in done.entrants if one.measurement is not None]
        assert times == [10.5, 30.0, 10.6, 15.0]
        spent = trials.spent(s, problem.id)
        assert (spent.trials, spent.open_trials, spent.compile_s) == (3, 0, 1.5)
        assert spent.device_s >= 2.0
    with database.begin() as s:
        new = NewRelease(problem.id, POLICY, POLICY_KEY, Winner.TRIAL, ids[1], race.id, 10.5, 15.0)
        release = releases.create(s, new)
        releases.publish(s, release.id)
        jobs.move_problem(s, problem.id, JobProblemState.DONE)
        jobs.move(s, job_id, JobState.FINISHING)
        jobs.move(s, job_id, JobState.DONE)
    with database.begin() as s:
        # the kernels of the race are kept, that of the third trial goes
        assert artifacts.prune(s, job_id) == 1
        kept = [trials.get(s, one) for one in ids]
        stored = [artifacts.get_bytes(s, one.artifact_sha256 or "") is not None for one in kept if one]
        assert stored == [True, True, False]
    with database.read() as s:
        served = releases.best(s, problem.problem_key, DEVICE, POLICY_KEY)
        assert served is not None
        assert (served.state, served.time_us, served.baseline_time_us) == (ReleaseState.PUBLISHED, 10.5, 15.0)
        assert served.artifact_sha256 == kept[1].artifact_sha256 if kept[1] else False
        told = events.after(s, 0, job_id=job_id)
        moves = [
            (one.source, one.to) for one in told if one.kind is EventKind.TRIAL and one.subject_id == ids[1]
        ]
        assert moves == [
            (None, "proposed"),
            ("proposed", "compiled"),
            ("compiled", "measuring"),
            ("measuring", "measured"),
        ]
        job_moves = [one.to for one in told if one.kind is EventKind.JOB]
        assert job_moves == ["queued", "running", "finishing", "done"]
        assert [one.id for one in told] == sorted(one.id for one in told)
        assert served.change_id in [one.id for one in told if one.kind is EventKind.RELEASE]


def test_a_second_proposal_of_the_same_schedule_is_ignored(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 2)
        problem = jobs.problems(s, job_id)[0]
        again = trials.propose(s, problem.id, [new_trial(n) for n in (1, 2, 2, 0, 3)])
        assert [(trial.number, trial.schedule["tile"]["mr"]) for trial in again] == [(2, 2), (3, 3)]
        assert trials.in_flight(s, problem.id) == 4


def test_nothing_is_proposed_to_a_job_that_ended(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 1)
        problem = jobs.problems(s, job_id)[0]
        jobs.move(s, job_id, JobState.CANCELLED, JobReason.USER)
        trials.cancel_open(s, job_id=job_id)
        assert trials.propose(s, problem.id, [new_trial(5)]) == []
        assert trials.in_flight(s, problem.id) == 0


def test_paused_and_queued_jobs_give_no_work(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 1)
        jobs.move(s, job_id, JobState.PAUSED, JobReason.USER)
        assert not trials.compile_waits(s, [ARCH])
        assert trials.claim_compile(s, "w", 5, 60, [ARCH]) == []
        jobs.move(s, job_id, JobState.RUNNING)
        assert not trials.compile_waits(s, ["sm_90a"])
        assert trials.compile_waits(s, [ARCH])
        assert len(trials.claim_compile(s, "w", 5, 60, [ARCH])) == 1


def test_claims_go_by_priority_then_job_then_number(database: Database) -> None:
    with database.begin() as s:
        first, _ = running_job(s, 2)
        second, _ = running_job(s, 2, priority=5)
        claims = trials.claim_compile(s, "w", 3, 60, [ARCH])
        assert [claim.job_id for claim in claims] == [second, second, first]
        numbers = [trial.number for claim in claims if (trial := trials.get(s, claim.trial_id))]
        assert numbers == [0, 1, 0]


@pytest.mark.parametrize("time_us", [math.inf, math.nan, -1.0, 0.0])
def test_an_impossible_time_is_a_failure_and_never_the_best(database: Database, time_us: float) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 1)
        compile_all(s)
        claim = trials.claim_measure(s, "w", DEVICE, 1, 60)[0]
        assert trials.finish_measure(s, claim.claim_id, measured(time_us))
        trial = trials.get(s, claim.trial_id)
        assert trial is not None
        assert (trial.state, trial.reason) == (TrialState.FAILED, TrialReason.INVALID_TIME)
        assert trials.best(s, claim.job_problem_id) is None
        assert trials.listing(s, job_id=job_id, order="fastest").rows == ()


def test_a_verdict_that_did_not_pass_fails_and_quarantines(database: Database) -> None:
    with database.begin() as s:
        running_job(s, 1)
        compile_all(s)
        claim = trials.claim_measure(s, "w", DEVICE, 1, 60)[0]
        assert trials.finish_measure(s, claim.claim_id, measured(10.0, passed=False))
        trial = trials.get(s, claim.trial_id)
        assert trial is not None
        assert (trial.state, trial.reason) == (TrialState.FAILED, TrialReason.WRONG_RESULT)
        assert trial.time_us is None
        assert quarantines.schedule_keys(s, "gemm_x86", ARCH) == {trial.schedule_key}
    # the same schedule under the same toolchain is not tried again, for another problem either
    with database.begin() as s:
        running_job(s, 1, 16)
        compile_all(s, "again")
        again = trials.listing(s, limit=1).rows[0]
        assert (again.state, again.reason) == (TrialState.REJECTED, TrialReason.QUARANTINED)
        assert trials.claim_measure(s, "w", DEVICE, 1, 60) == []


def test_disturbed_times_are_kept_but_never_best(database: Database) -> None:
    with database.begin() as s:
        running_job(s, 2)
        compile_all(s)
        one, two = trials.claim_measure(s, "w", DEVICE, 2, 60)
        assert trials.finish_measure(s, one.claim_id, measured(1.0, contended=True))
        assert trials.finish_measure(s, two.claim_id, measured(5.0))
        best = trials.best(s, one.job_problem_id)
        assert best is not None
        assert best.id == two.trial_id


def test_culled_trials_keep_their_look_but_are_not_best(database: Database) -> None:
    with database.begin() as s:
        running_job(s, 1)
        compile_all(s)
        claim = trials.claim_measure(s, "w", DEVICE, 1, 60)[0]
        assert trials.finish_measure(s, claim.claim_id, measured(9.0, culled=True))
        detail = trials.detail(s, claim.trial_id)
        assert detail is not None
        assert (detail.trial.state, detail.trial.reason) == (TrialState.CULLED, TrialReason.SLOWER)
        assert [one.median_us for one in detail.measurements] == [9.0]
        assert detail.measurements[0].q10_us is None
        assert trials.best(s, claim.job_problem_id) is None


def test_without_a_device_a_trial_ends_ranked(database: Database) -> None:
    with database.begin() as s:
        base = new_job()
        problems = [type(base.problems[0])(base.problems[0].problem, None, ARCH)]
        running_job(s, 1, problems=problems)
        compile_all(s)
        trial = trials.listing(s).rows[0]
        assert (trial.state, trial.stage) == (TrialState.RANKED, Stage.DONE)


def test_evidence_of_any_kind_is_kept_within_bounds(database: Database) -> None:
    evidence = {
        "log": "x" * 500_000 + "the end\0",
        "first_wrong": {"index": [1, 2], "got": math.nan, "want": -math.inf},
        "signal": b"\xff\x00",
        "lone": "\ud800",
    }
    with database.begin() as s:
        running_job(s, 1)
        compile_all(s)
        claim = trials.claim_measure(s, "w", DEVICE, 1, 60)[0]
        crash = failed(TrialReason.CRASH, evidence, verdict=verdict(False), device_s=0.25)
        assert trials.finish_measure(s, claim.claim_id, crash)
    with database.read() as s:
        detail = trials.detail(s, claim.trial_id)
        assert detail is not None
        assert detail.evidence["first_wrong"] == {"index": [1, 2], "got": "NaN", "want": "-Infinity"}
        assert len(detail.evidence["log"]) < 66_000
        assert "bytes left out" in detail.evidence["log"]
        assert detail.evidence["log"].endswith("the end\ufffd")
        assert detail.trial.device_s == 0.25
        assert [one.passed for one in detail.verdicts] == [False]


def test_a_finalist_that_is_wrong_in_the_race_loses_its_time(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 2)
        compile_all(s)
        good, bad = measure_all(s, [20.0, 10.0])
        problem = jobs.problems(s, job_id)[0]
        jobs.move_problem(s, problem.id, JobProblemState.RACING)
        entrants = [
            NewEntrant("a", EntrantRole.FINALIST, bad),
            NewEntrant("b", EntrantRole.DEFAULT, good),
            NewEntrant("c", EntrantRole.BASELINE),
        ]
        races.create(s, problem.id, entrants, POLICY, seed=1)
        claim = races.claim(s, "w", DEVICE, 60)
        assert claim is not None
        wrong = failed(TrialReason.OUT_OF_BOUNDS, {"margin": 3})
        unsure = Failed(TrialState.FAILED, TrialReason.CONTENDED)
        results = [
            EntrantResult("a", EntrantRole.FINALIST, bad, None, verdict(False), wrong),
            EntrantResult("b", EntrantRole.DEFAULT, good, None, verdict(), unsure),
            EntrantResult("c", EntrantRole.BASELINE, None, measurement(15.0), verdict(), None),
        ]
        assert races.finish(s, claim.claim_id, RaceOutcome(results, {}, {}))
        best = trials.best(s, problem.id)
        assert best is not None
        assert best.id == good  # a disturbed race is not the trial's fault
        lost = trials.get(s, bad)
        assert lost is not None
        assert (lost.state, lost.reason, lost.time_us) == (
            TrialState.FAILED,
            TrialReason.OUT_OF_BOUNDS,
            None,
        )
        assert [one.trial_id for one in quarantines.listing(s)] == [bad]


def test_counts_and_pages(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 7)
        compile_all(s)
        measure_all(s, [5.0, 3.0, 3.0, 4.0])
        claim = trials.claim_measure(s, "w", DEVICE, 1, 60)[0]
        trials.finish_measure(s, claim.claim_id, failed(TrialReason.HANG))
    with database.read() as s:
        counted = [(one.state.value, one.count) for one in trials.counts(s, job_id=job_id)]
        assert counted == [("compiled", 2), ("failed", 1), ("measured", 4)]
        seen, after = [], None
        while True:
            page = trials.listing(s, job_id=job_id, order="fastest", after=after, limit=2)
            seen += [row.time_us for row in page.rows]
            after = page.next
            if after is None:
                break
        assert seen == [3.0, 3.0, 4.0, 5.0]
        ids = []
        after = None
        while True:
            page = trials.listing(s, job_id=job_id, after=after, limit=3)
            ids += [row.id for row in page.rows]
            after = page.next
            if after is None:
                break
        assert len(ids) == 7
        assert ids == sorted(ids, reverse=True)


def test_a_kernel_that_another_open_job_may_still_need_is_not_pruned(database: Database) -> None:
    with database.begin() as s:
        first, _ = running_job(s, 1)
        second, _ = running_job(s, 1, 16)
        for claim in trials.claim_compile(s, "w", 2, 60, [ARCH]):
            assert trials.finish_compile(s, claim.claim_id, compiled(b"shared"))
        for claim in trials.claim_measure(s, "w", DEVICE, 2, 60):
            assert trials.finish_measure(s, claim.claim_id, measured(5.0))
        jobs.move(s, first, JobState.CANCELLED)
        assert artifacts.prune(s, first) == 0
        jobs.move(s, second, JobState.CANCELLED)
        assert artifacts.prune(s, second) == 1
