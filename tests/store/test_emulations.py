"""Is each structure paid for once, does its verdict reach every trial it speaks for, and is nothing lost?"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from sqlalchemy import select
from support.store import (
    GPU_ARCH,
    add_device,
    compile_all,
    compiled,
    emulate_all,
    emulated,
    gpu_job,
    measure_all,
    measured,
    running_job,
)

from service.store import artifacts, clock, emulation_claims, emulations, jobs, quarantines, releases, trials
from service.store.database import Database
from service.store.enums import (
    EmulationScope,
    EmulationState,
    EventKind,
    JobProblemState,
    JobState,
    Stage,
    TrialReason,
    TrialState,
    VerdictKind,
    Winner,
)
from service.store.models import Emulation
from service.store.records import NewRelease, TrialRecord, Undecided

ONE, TWO = {"layout": "tn"}, {"layout": "nn"}


def states(database: Database, rows: list[TrialRecord]) -> list[TrialState]:
    with database.read() as s:
        found = [trials.get(s, row.id) for row in rows]
    return [row.state for row in found if row is not None]


def test_a_structure_is_run_once_and_speaks_for_all_its_trials(database: Database) -> None:
    with database.begin() as s:
        rows = gpu_job(s, 3)
        compile_all(s, structure=ONE, ptx=b".version 8.0")
    assert states(database, rows) == [TrialState.COMPILED] * 3
    with database.begin() as s:
        first = trials.get(s, rows[0].id)
        assert first is not None
        assert first.stage is Stage.EMULATE
        assert artifacts.get_ptx(s, first.artifact_sha256 or "") == b".version 8.0"
        assert not emulation_claims.waits(s, ["sm_90a"])
        assert emulation_claims.waits(s, [GPU_ARCH])
        assert emulate_all(s) == [rows[0].id]
    assert states(database, rows) == [TrialState.RANKED] * 3
    # The next one of the structure needs no run, in another job neither.
    with database.begin() as s:
        more = gpu_job(s, 1)
        compile_all(s, "other", structure=ONE)
        assert not emulation_claims.waits(s, [GPU_ARCH])
    assert states(database, more) == [TrialState.RANKED]
    with database.begin() as s:
        other = gpu_job(s, 1)
        compile_all(s, "another", structure=TWO)
        assert emulate_all(s) == [other[0].id]
    with database.read() as s:
        details = [trials.detail(s, row.id) for row in (rows[0], rows[2], more[0])]
    for detail in details:
        assert detail is not None
        assert detail.emulation is not None
        assert detail.emulation.trial_id == rows[0].id
        assert detail.emulation.schedule == rows[0].schedule
        assert detail.emulation.counters == {"bank_conflicts": 4}
    assert [len(one.verdicts) for one in details if one] == [1, 0, 0]
    assert details[0] is not None
    assert details[0].verdicts[0].kind is VerdictKind.EMULATED


def test_a_wrong_structure_ends_and_quarantines_every_trial_of_it(database: Database) -> None:
    with database.begin() as s:
        rows = gpu_job(s, 3)
        compile_all(s, structure=ONE)
        emulate_all(s, emulated(False))
        more = gpu_job(s, 1, priority=1)
    with database.begin() as s:
        compile_all(s, "later", structure=ONE)
        assert not emulation_claims.waits(s, [GPU_ARCH])
    with database.read() as s:
        found = [trials.detail(s, row.id) for row in [*rows, *more]]
        kept = {one.schedule_key for one in quarantines.listing(s)}
    assert {row.schedule_key for row in rows} <= kept
    for detail in found:
        assert detail is not None
        assert (detail.trial.state, detail.trial.reason) == (TrialState.FAILED, TrialReason.RACE)
        assert detail.evidence["faults"][0]["line"] == 90
    # Each says whose schedule was run.
    assert found[0] is not None
    assert "run_trial_id" not in found[0].evidence
    assert [one.evidence["run_trial_id"] for one in found[1:] if one] == [rows[0].id] * 3
    assert found[1] is not None
    assert found[1].evidence["message"].startswith("A schedule of the same structure")


@pytest.mark.parametrize("policy", ["never", "finalists"])
def test_policies_that_run_nothing_during_the_search(database: Database, policy: str) -> None:
    with database.begin() as s:
        rows = gpu_job(s, 2, policy=policy)
        compile_all(s, structure=ONE)
        assert not emulation_claims.waits(s, [GPU_ARCH])
    assert states(database, rows) == [TrialState.RANKED] * 2
    # A finalist is run itself; that is the first run of its structure, and so its verdict.
    with database.begin() as s:
        asked = emulations.want_own(s, rows[1].id)
        assert asked is not None
        assert asked.scope is EmulationScope.STRUCTURE
        assert emulations.want_own(s, rows[1].id) == asked
        again = emulations.want_own(s, rows[0].id)
        assert again is not None
        assert again.scope is EmulationScope.TRIAL
        assert emulate_all(s, count=1) == [rows[0].id]  # single trials first
        assert emulate_all(s, emulated(False)) == [rows[1].id]
    # A finalist's own verdict stands until its structure is found wrong.
    assert states(database, rows) == [TrialState.FAILED] * 2


def test_policy_all_runs_each_trial_itself(database: Database) -> None:
    with database.begin() as s:
        rows = gpu_job(s, 3, policy="all")
        compile_all(s, structure=ONE)
        # The structure's verdict comes last here, and none waits for it in place of its own.
        assert emulate_all(s, count=1) == [rows[1].id]
    assert states(database, rows) == [TrialState.COMPILED, TrialState.RANKED, TrialState.COMPILED]
    with database.begin() as s:
        assert emulate_all(s) == [rows[2].id, rows[0].id]
        assert [getattr(emulations.of_trial(s, row.id), "trial_id", None) for row in rows] == [
            row.id for row in rows
        ]
    assert states(database, rows) == [TrialState.RANKED] * 3


def test_under_all_the_structures_word_is_not_enough(database: Database) -> None:
    with database.begin() as s:
        rows = gpu_job(s, 2, policy="all")
        compile_all(s, structure=ONE)
        own = emulation_claims.claim(s, "a", 60, [GPU_ARCH])
        structure = emulation_claims.claim(s, "b", 60, [GPU_ARCH])
        assert own is not None
        assert structure is not None
        assert (own.trial_id, structure.trial_id) == (rows[1].id, rows[0].id)
        assert emulation_claims.finish(s, structure.claim_id, emulated())
    assert states(database, rows) == [TrialState.RANKED, TrialState.COMPILED]
    with database.begin() as s:
        assert emulation_claims.finish(s, own.claim_id, emulated())
    assert states(database, rows) == [TrialState.RANKED] * 2


def test_a_structure_that_was_given_up_for_want_of_schedules_is_tried_with_the_next(
    database: Database,
) -> None:
    lost = Undecided(TrialReason.EMULATE_MEMORY, {"message": "too large"})
    with database.begin() as s:
        first = gpu_job(s, 1)
        compile_all(s, structure=ONE)
        assert emulate_all(s, lost) == [first[0].id]
        later = gpu_job(s, 1)
        compile_all(s, "later", structure=ONE)
        assert emulate_all(s) == [later[0].id]
    assert states(database, [*first, *later]) == [TrialState.FAILED, TrialState.RANKED]


def test_a_problem_that_has_ended_wants_no_verdict_though_its_job_goes_on(database: Database) -> None:
    with database.begin() as s:
        add_device(s)
        _, rows = running_job(s, 1, 8, 16, options={"emulate": "structure"})
        compile_all(s, structure=ONE)
        measure_all(s, [10.0])
        assert emulation_claims.waits(s, [rows[0].arch])
        jobs.move_problem(s, rows[0].job_problem_id, JobProblemState.DONE)
        assert not emulation_claims.waits(s, [rows[0].arch])


def test_a_known_wrong_structure_is_wrong_under_every_policy(database: Database) -> None:
    with database.begin() as s:
        gpu_job(s, 1)
        compile_all(s, structure=ONE)
        emulate_all(s, emulated(False))
        rows = gpu_job(s, 2, policy="never")
        compile_all(s, "never", structure=ONE)
    assert set(states(database, rows)) <= {TrialState.FAILED, TrialState.REJECTED}


def test_what_cannot_be_run_ends_and_another_schedule_is_tried(database: Database) -> None:
    lost = Undecided(TrialReason.EMULATE_TIMEOUT, {"message": "60 s"}, 60.0)
    with database.begin() as s:
        rows = gpu_job(s, 5)
        compile_all(s, structure=ONE)
        assert emulate_all(s, lost, 1) == [rows[0].id]
    assert states(database, rows)[:2] == [TrialState.FAILED, TrialState.COMPILED]
    with database.begin() as s:
        assert emulate_all(s, lost, 1) == [rows[1].id]
        assert emulate_all(s, count=1) == [rows[2].id]
    expected = [TrialState.FAILED, TrialState.FAILED, TrialState.RANKED, TrialState.RANKED, TrialState.RANKED]
    assert states(database, rows) == expected
    with database.read() as s:
        assert quarantines.listing(s) == []  # nobody said that it is wrong


def test_a_structure_that_cannot_be_run_at_all_is_given_up(database: Database) -> None:
    lost = Undecided(TrialReason.NOT_EMULATED, {"message": "line 7: frobnicate.b32"})
    with database.begin() as s:
        rows = gpu_job(s, 5)
        compile_all(s, structure=ONE)
        assert emulate_all(s, lost) == [row.id for row in rows[:3]]
        late = gpu_job(s, 1)
        compile_all(s, "late", structure=ONE)
    assert states(database, [*rows, *late]) == [TrialState.FAILED] * 6
    with database.read() as s:
        last = trials.detail(s, late[0].id)
    assert last is not None
    assert (last.trial.reason, last.evidence["message"]) == (
        TrialReason.NOT_EMULATED,
        "line 7: frobnicate.b32",
    )


def test_a_lease_that_runs_out_is_given_back_and_late_replies_change_nothing(database: Database) -> None:
    with database.begin() as s:
        rows = gpu_job(s, 1)
        compile_all(s, structure=ONE)
        claim = emulation_claims.claim(s, "a", 60, [GPU_ARCH])
        assert claim is not None
        assert emulation_claims.claim(s, "b", 60, [GPU_ARCH]) is None
        assert emulation_claims.renew(s, claim.claim_id, 60)
        row = s.get_one(Emulation, claim.emulation_id)
        row.lease_expires_at = clock.now(s) - timedelta(seconds=1)
    with database.begin() as s:
        assert emulation_claims.expire(s) == [claim.emulation_id]
        assert not emulation_claims.renew(s, claim.claim_id, 60)
        assert not emulation_claims.finish(s, claim.claim_id, emulated(False))
        again = emulation_claims.claim(s, "b", 60, [GPU_ARCH])
        assert again is not None
        assert again.attempt == claim.attempt + 1
        assert again.seed == claim.seed
        assert emulation_claims.release(s, again.claim_id)
        assert not emulation_claims.release(s, again.claim_id)
    for _ in range(2):
        with database.begin() as s:
            assert emulation_claims.claim(s, "c", 60, [GPU_ARCH]) is not None
        with database.begin() as s:
            assert len(emulation_claims.expire(s, owner="c")) == 1
    with database.read() as s:
        (row_after,) = [trials.get(s, row.id) for row in rows]
    assert row_after is not None
    assert (row_after.state, row_after.reason) == (TrialState.FAILED, TrialReason.WORKER_LOST)


def test_nobody_runs_what_nobody_wants(database: Database) -> None:
    with database.begin() as s:
        rows = gpu_job(s, 1)
        compile_all(s, structure=ONE)
        claim = emulation_claims.claim(s, "a", 60, [GPU_ARCH])
        assert claim is not None
        jobs.move(s, rows[0].job_id, JobState.PAUSED)
        assert emulation_claims.renew(s, claim.claim_id, 60)  # what is under way ends
        jobs.move(s, rows[0].job_id, JobState.QUEUED)
        trials.cancel_open(s, job_id=rows[0].job_id)
        jobs.move(s, rows[0].job_id, JobState.CANCELLED)
        assert not emulation_claims.renew(s, claim.claim_id, 60)
        assert emulation_claims.release(s, claim.claim_id)
        assert not emulation_claims.waits(s, [GPU_ARCH])
    # Another job wants the same: with a schedule of its own, since the first one's job is over.
    with database.begin() as s:
        more = gpu_job(s, 1)
        compile_all(s, "more", structure=ONE)
        assert emulate_all(s) == [more[0].id]
    assert states(database, more) == [TrialState.RANKED]


def test_beside_a_device_the_verdict_takes_the_time_away_and_the_release_with_it(database: Database) -> None:
    with database.begin() as s:
        add_device(s)
        _, rows = running_job(s, 3, options={"emulate": "structure"})
        compile_all(s, structure=ONE)
        # the device does not wait for the emulator
        assert measure_all(s, [10.0]) == [rows[0].id]
        release = releases.create(
            s,
            NewRelease(
                rows[0].job_problem_id, {}, "cold-eager", Winner.TRIAL, rows[0].id, None, 10.0, None,
                unproven=True,
            ),
        )
        assert releases.publish(s, release.id).unproven
    with database.begin() as s:
        (claim,) = trials.claim_measure(s, "measurer", rows[0].device_key or "", 1, 60)
        run = emulation_claims.claim(s, "emulator", 60, [rows[0].arch])
        assert run is not None
        assert emulation_claims.finish(s, run.claim_id, emulated(False))
        assert not trials.finish_measure(s, claim.claim_id, measured(9.0))
    with database.read() as s:
        found = [trials.get(s, row.id) for row in rows]
        assert [one.id for one in releases.quarantined(s)] == [release.id]
    assert [(one.state, one.time_us) for one in found if one] == [(TrialState.FAILED, None)] * 3
    assert {one.reason for one in found if one} == {TrialReason.RACE}


@pytest.mark.parametrize("policy", ["structure", "all"])
def test_many_at_once_wait_for_nobody_for_ever(database: Database, policy: str) -> None:
    """Compiles and runs that end at the same moment: no trial is left waiting, no structure is run twice."""
    count, structures = 24, 4
    with database.begin() as s:
        rows = gpu_job(s, count, policy=policy)
    left, wrong = [count], {"of": 0}
    lock = threading.Lock()

    def compile_some() -> None:
        while True:
            with lock:
                if left[0] <= 0:
                    return
                left[0] -= 1
            for claim in database.run(lambda s: trials.claim_compile(s, "c", 1, 60, [GPU_ARCH])):
                structure = {"of": claim.trial_id % structures}
                built = compiled(f"{claim.trial_id}".encode(), structure=structure)
                assert database.run(lambda s, c=claim, b=built: trials.finish_compile(s, c.claim_id, b))

    def emulate_some() -> None:
        idle_until = time.monotonic() + 30
        while time.monotonic() < idle_until:
            claim = database.run(lambda s: emulation_claims.claim(s, "e", 60, [GPU_ARCH]))
            if claim is None:
                if left[0] <= 0 and not any(thread.is_alive() for thread in compilers):
                    return
                time.sleep(0.005)
                continue
            bad = policy == "structure" and claim.trial_id % structures == wrong["of"]
            outcome = emulated(not bad)
            assert database.run(lambda s, c=claim, o=outcome: emulation_claims.finish(s, c.claim_id, o))

    compilers = [threading.Thread(target=compile_some) for _ in range(3)]
    emulators = [threading.Thread(target=emulate_some) for _ in range(2)]
    for thread in (*compilers, *emulators):
        thread.start()
    for thread in (*compilers, *emulators):
        thread.join(60)
        assert not thread.is_alive()
    with database.read() as s:
        found = [trials.get(s, row.id) for row in rows]
        runs = s.scalars(select(Emulation)).all()
    for row in found:
        assert row is not None
        bad = policy == "structure" and row.id % structures == wrong["of"]
        assert row.state is (TrialState.FAILED if bad else TrialState.RANKED)
    assert len(runs) == (structures if policy == "structure" else count)
    assert all(run.attempt == 1 for run in runs)


def test_what_was_culled_is_quarantined_with_its_structure(database: Database) -> None:
    with database.begin() as s:
        add_device(s)
        _, rows = running_job(s, 2, options={"emulate": "structure"})
        compile_all(s, structure=ONE)
        measure_all(s, [10.0])
        (claim,) = trials.claim_measure(s, "measurer", rows[1].device_key or "", 1, 60)
        assert trials.finish_measure(s, claim.claim_id, measured(20.0, culled=True))
        run = emulation_claims.claim(s, "emulator", 60, [rows[0].arch])
        assert run is not None
        assert emulation_claims.finish(s, run.claim_id, emulated(False))
    assert states(database, rows) == [TrialState.FAILED, TrialState.CULLED]
    with database.read() as s:
        assert {one.schedule_key for one in quarantines.listing(s)} == {row.schedule_key for row in rows}


def test_every_move_of_a_run_is_told(database: Database) -> None:
    from service.store import events

    with database.begin() as s:
        rows = gpu_job(s, 1)
        compile_all(s, structure=ONE)
    with database.begin() as s:
        emulate_all(s, emulated(False))
    with database.read() as s:
        told = [one for one in events.after(s, 0) if one.kind is EventKind.EMULATION]
        run = emulations.of_trial(s, rows[0].id, whole=True)
    assert [one.to for one in told] == ["queued", "running", "failed"]
    assert run is not None
    assert run.state is EmulationState.FAILED
    assert run.evidence["faults"][0]["kind"] == "race"
    assert [one.job_id for one in told] == [rows[0].job_id] * 3
