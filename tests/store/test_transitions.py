"""Is every move that the tables do not have refused, and every move they have possible?"""

from __future__ import annotations

import pytest
from support.store import new_job, running_job

from service.store import events, jobs, moves, trials
from service.store.database import Database
from service.store.enums import (
    EmulationState,
    EventKind,
    JobProblemState,
    JobReason,
    JobState,
    RaceState,
    ReleaseState,
    TrialState,
    Word,
)
from service.store.errors import Conflict, IllegalTransition, NotFound
from service.store.models import Job, Trial
from service.store.transitions import INITIAL, JOB, TABLES, TRIAL, TRIAL_OPEN, Table, final

WORDS: dict[str, type[Word]] = {
    "trial": TrialState,
    "job": JobState,
    "job_problem": JobProblemState,
    "race": RaceState,
    "emulation": EmulationState,
    "release": ReleaseState,
}


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_closed_and_leads_to_an_end(name: str) -> None:
    table: Table = TABLES[name]
    states = set(WORDS[name])
    assert set(table) == states
    assert all(set(after) <= states for after in table.values())
    reached, edge = {INITIAL[name]}, [INITIAL[name]]
    while edge:
        new = [one for one in table[edge.pop()] if one not in reached]
        reached.update(new)
        edge += new
    assert reached == states
    assert final(table)


def test_open_and_final_trials_are_all_trials() -> None:
    # a measured or ranked trial is done, though a race or the emulator may still find it wrong
    done = {TrialState.MEASURED, TrialState.RANKED}
    assert set(TRIAL_OPEN) | final(TRIAL) | done == set(TrialState)
    assert all(TRIAL[one] == (TrialState.FAILED,) for one in done)


def test_every_word_is_explained() -> None:
    for words in WORDS.values():
        assert all(word.doc.endswith(".") for word in words)


@pytest.mark.parametrize("source", list(JobState))
@pytest.mark.parametrize("to", list(JobState))
def test_jobs_move_by_the_table_only(sqlite_url: str, source: JobState, to: JobState) -> None:
    if source is to:
        return
    database = Database(sqlite_url)
    with database.begin() as s:
        job, _ = jobs.create(s, new_job())
        row = s.get_one(Job, job.id)
        row.state = source
    with database.begin() as s:
        if to in JOB[source]:
            assert jobs.move(s, job.id, to).state is to
        else:
            with pytest.raises(IllegalTransition, match=f"is {source} and can not become {to}"):
                jobs.move(s, job.id, to)
    with database.read() as s:
        found = jobs.get(s, job.id)
        assert found is not None
        assert found.state is (to if to in JOB[source] else source)
        assert [one.to for one in events.after(s, 0)][1:] == ([to] if to in JOB[source] else [])
    database.close()


def test_a_move_fails_if_another_process_moved_the_row_first(database: Database) -> None:
    with database.begin() as s:
        _, (trial,) = running_job(s, 1)
    with database.begin() as s:
        row = s.get_one(Trial, trial.id)
        s.expunge(row)  # what a process saw a while ago
    with database.begin() as s:
        trials.cancel_open(s, job_id=trial.job_id)
    with database.begin() as s, pytest.raises(Conflict):
        moves.transition(s, row, TrialState.COMPILED)


def test_an_illegal_move_says_what_is_possible(database: Database) -> None:
    with database.begin() as s:
        job, _ = jobs.create(s, new_job())
        jobs.move(s, job.id, JobState.CANCELLED, JobReason.USER, "not wanted any more")
        with pytest.raises(IllegalTransition, match="nothing: it is final") as caught:
            jobs.move(s, job.id, JobState.RUNNING)
        assert (caught.value.source, caught.value.to) == ("cancelled", "running")
        with pytest.raises(NotFound, match="There is no job 4711"):
            jobs.move(s, 4711, JobState.RUNNING)


def test_moving_to_the_same_state_renews_the_reason_and_tells_nothing(database: Database) -> None:
    with database.begin() as s:
        job, _ = jobs.create(s, new_job())
        jobs.move(s, job.id, JobState.WAITING, JobReason.NO_DEVICE, "waits for gpu-a")
        again = jobs.move(s, job.id, JobState.WAITING, JobReason.NO_WORKER, "waits for a worker")
        assert (again.reason, again.message) == (JobReason.NO_WORKER, "waits for a worker")
    with database.read() as s:
        told = [(one.to, one.reason) for one in events.after(s, 0) if one.kind is EventKind.JOB]
        assert told == [("queued", None), ("waiting", "no_device")]


def test_a_job_counts_only_the_seconds_it_runs(database: Database) -> None:
    with database.begin() as s:
        job, _ = jobs.create(s, new_job())
        assert jobs.move(s, job.id, JobState.RUNNING).ran_s < 0.5
        row = s.get_one(Job, job.id)
        assert row.running_since is not None
        row.running_since = row.running_since.replace(year=row.running_since.year - 1)
        s.flush()
        paused = jobs.move(s, job.id, JobState.PAUSED)
        assert 300 * 86400 < paused.ran_s < 400 * 86400
        assert paused.started_at is not None
        running = jobs.move(s, job.id, JobState.RUNNING)
        assert running.ran_s - paused.ran_s < 5
        done = jobs.move(s, job.id, JobState.CANCELLED)
        assert done.finished_at is not None
        assert done.ran_s == pytest.approx(running.ran_s, abs=5)
