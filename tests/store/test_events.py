"""Can a reader who resumes at the last id it saw ever miss an event?"""

from __future__ import annotations

import contextlib
import threading
import time

from support.store import compile_all, new_job, running_job

from service.store import events, jobs, releases, trials
from service.store.database import Database
from service.store.enums import JobState, Winner
from service.store.records import NewRelease


def test_no_event_becomes_visible_after_one_with_a_greater_id(database: Database, database_url: str) -> None:
    """Writers whose transactions take different times, and a reader that only goes forward."""
    with database.begin() as s:
        ids = [jobs.create(s, new_job(8))[0].id for _ in range(4)]
        start = events.latest_id(s)
    stop = threading.Event()
    seen: list[int] = []
    reader_database = Database(database_url)

    def read() -> None:
        last = start
        while True:
            ended = stop.is_set()
            with reader_database.read() as s:
                for one in events.after(s, last):
                    seen.append(one.id)
                    last = one.id
            if ended:
                return

    def write(number: int) -> None:
        own = Database(database_url)
        for step in range(12):
            with own.begin() as s:
                events.note(s, ids[number], "step", {"number": step})
                time.sleep(0.002 * ((number * 7 + step * 3) % 5))
        own.close()

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    reader_database.close()
    with database.read() as s:
        written = [one.id for one in events.after(s, start)]
    assert len(written) >= 48
    assert seen == written


def test_on_postgres_a_slow_commit_holds_back_later_ids(postgres_url: str) -> None:
    """The very interleaving that a bare sequence gets wrong: A draws first and commits last."""
    database, other = Database(postgres_url), Database(postgres_url)
    with database.begin() as s:
        events.note(s, None, "first")
    order: list[str] = []
    with database.begin() as slow:
        events.note(slow, None, "slow")
        events.write_pending(slow)  # as its commit would; the lock is held from here

        def quick() -> None:
            with other.begin() as s:
                events.note(s, None, "quick")
            order.append("quick is in")

        thread = threading.Thread(target=quick)
        thread.start()
        time.sleep(0.3)
        order.append("slow commits")
    thread.join()
    assert order == ["slow commits", "quick is in"]
    with database.read() as s:
        assert [one.to for one in events.after(s, 0)] == ["first", "slow", "quick"]
    database.close()
    other.close()


def test_a_rolled_back_transaction_tells_nothing(database: Database) -> None:
    with contextlib.suppress(RuntimeError), database.begin() as s:
        events.note(s, None, "lost")
        raise RuntimeError("no")
    with database.begin() as s:
        events.note(s, None, "kept")
        with contextlib.suppress(RuntimeError), s.begin_nested():
            events.note(s, None, "lost with its savepoint")
            raise RuntimeError("no")
        with s.begin_nested():
            events.note(s, None, "kept with its savepoint")
    with database.read() as s:
        assert [one.to for one in events.after(s, 0)] == ["kept", "kept with its savepoint"]


def test_events_of_one_job(database: Database) -> None:
    with database.begin() as s:
        one, _ = jobs.create(s, new_job(8))
        two, _ = jobs.create(s, new_job(8))
    with database.begin() as s:
        jobs.move(s, two.id, JobState.RUNNING)
    with database.read() as s:
        assert [event.to for event in events.after(s, 0, job_id=two.id)] == ["queued", "running"]
        assert events.latest_id(s, one.id) < events.latest_id(s, two.id) == events.latest_id(s)
        assert events.latest_id(s, 999) == 0


def test_releases_change_in_the_order_of_their_change_ids(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 2)
        compile_all(s)
        problem = jobs.problems(s, job_id)[0]
        first, second = trials.of_problem(s, problem.id)
        old = releases.create(s, NewRelease(problem.id, {}, "p", Winner.TRIAL, first.id, None, 10.0, 20.0))
    with database.read() as s:
        assert releases.changes(s) == []  # a candidate is nobody's business
    with database.begin() as s:
        releases.publish(s, old.id)
    with database.begin() as s:
        new = releases.create(s, NewRelease(problem.id, {}, "p", Winner.TRIAL, second.id, None, 9.0, 20.0))
        releases.publish(s, new.id)
    with database.read() as s:
        told = releases.changes(s)
        assert [(one.id, one.state.value) for one in told] == [(old.id, "superseded"), (new.id, "published")]
        cursor = told[-1].change_id
        assert releases.changes(s, after=cursor) == []
    with database.begin() as s:
        releases.withdraw(s, new.id, "wrong result")
    with database.read() as s:
        told = releases.changes(s, after=cursor)
        assert [(one.id, one.state.value, one.reason) for one in told] == [
            (new.id, "withdrawn", "wrong result")
        ]
        assert told[0].change_id > cursor
        assert releases.changes(s, after=cursor, device_key="another") == []
