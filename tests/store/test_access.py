"""Does access end when it should, and is one request one job?"""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select, text
from support.store import DEVICE, POLICY_KEY, beat, new_job, problem

from service.store import demand, devices, idempotency, jobs, logins, owners, problems, tokens, workers
from service.store.database import Database
from service.store.enums import AuditAction, DeviceState, JobState, Scope, WorkerKind, WorkerState
from service.store.errors import IdempotencyConflict, NotFound, TokenEnded, TokenOfAnother
from service.store.models import Audit
from service.store.records import DeviceRecord, NewDemand
from service.store.retention import forget_demand


def test_tokens(database: Database) -> None:
    with database.begin() as s:
        token, clear = tokens.create(s, "ci", [Scope.SUBMIT, Scope.READ])
        short, gone = tokens.create(s, "short", [Scope.READ], expires_in_s=-1)
        assert len(clear) >= 43
        found = tokens.check(s, clear)
        assert found is not None
        assert (found.id, found.scopes) == (token.id, {Scope.READ, Scope.SUBMIT})
        assert tokens.check(s, gone) is None
        assert tokens.check(s, "guess") is None
        assert tokens.check(s, "\ud800") is None
        tokens.touch(s, token.id)
        assert [one.last_used_at is not None for one in tokens.listing(s)] == [True, False]
        assert tokens.revoke(s, token.id)
        assert not tokens.revoke(s, token.id)
        assert tokens.check(s, clear) is None
        stored = " ".join(str(row) for row in s.execute(text("SELECT * FROM tokens")))
        assert clear not in stored
        assert gone not in stored
    assert short.expires_at is not None


def test_the_servers_own_token_follows_its_file(database: Database) -> None:
    with database.begin() as s:
        first = tokens.ensure(s, "admin", [Scope.ADMIN], "secret-1")
        assert tokens.ensure(s, "admin", [Scope.ADMIN], "secret-1").id == first.id
        second = tokens.ensure(s, "admin", [Scope.ADMIN], "secret-2")
        assert second.id != first.id
        assert tokens.check(s, "secret-1") is None
        with pytest.raises(TokenEnded, match="was revoked or has expired"):
            tokens.ensure(s, "admin", [Scope.ADMIN], "secret-1")
        assert tokens.check(s, "secret-1") is None
        assert tokens.check(s, "secret-2") is not None


def test_a_token_that_leaked_does_not_come_back_with_the_next_start(database: Database) -> None:
    with database.begin() as s:
        leaked = tokens.ensure(s, "ROOFTILE_TOKEN", [Scope.ADMIN], "secret-1")
        assert tokens.revoke(s, leaked.id)
        _, short = tokens.create(s, "short", [Scope.READ], expires_in_s=-1)
    for clear in ("secret-1", short):
        with pytest.raises(TokenEnded), database.begin() as s:
            tokens.ensure(s, "ROOFTILE_TOKEN", [Scope.ADMIN], clear)
        with database.begin() as s:
            assert tokens.check(s, clear) is None


def test_what_was_given_to_a_client_never_becomes_the_services_own(database: Database) -> None:
    with database.begin() as s:
        own = tokens.ensure(s, tokens.FROM_ENVIRONMENT, [Scope.ADMIN], "secret-1")
        record, clear = tokens.create(s, "reader", [Scope.READ])
        _, boss = tokens.create(s, "boss", [Scope.ADMIN])
        _, posing = tokens.create(s, tokens.FROM_ENVIRONMENT, [Scope.READ])
    for text_of_it in (clear, boss, posing):
        with pytest.raises(TokenOfAnother, match="made for a client"), database.begin() as s:
            tokens.ensure(s, tokens.FROM_ENVIRONMENT, [Scope.ADMIN], text_of_it)
    with database.begin() as s:
        found, kept = tokens.check(s, clear), tokens.check(s, "secret-1")
        assert found is not None
        assert kept is not None
        assert (found.id, found.name, found.scopes) == (record.id, "reader", {Scope.READ})
        assert (kept.id, kept.scopes) == (own.id, {Scope.ADMIN})


def test_the_token_of_a_home_that_moved_is_the_same_one(database: Database) -> None:
    with database.begin() as s:
        first = tokens.ensure(s, f"{tokens.OF_A_HOME}host:/old", [Scope.ADMIN], "secret-1")
        for name in (f"{tokens.OF_A_HOME}host:/new", tokens.FROM_ENVIRONMENT):
            again = tokens.ensure(s, name, [Scope.ADMIN], "secret-1")
            assert (again.id, again.name) == (first.id, name)
    with database.read() as s:
        rows = s.scalars(select(Audit).where(Audit.subject == f"token:{first.id}")).all()
    assert [(row.action, row.data["scopes"]) for row in rows] == [(AuditAction.TOKEN_MADE, ["admin"])]


def test_a_login_code_works_once(database: Database) -> None:
    with database.begin() as s:
        code = logins.create_code(s, [Scope.ADMIN])
        late = logins.create_code(s, [Scope.ADMIN], expires_in_s=-1)
    with database.begin() as s:
        assert logins.redeem(s, late) is None
        got = logins.redeem(s, code)
        assert got is not None
        session, cookie = got
        assert logins.redeem(s, code) is None
    with database.begin() as s:
        found = logins.check(s, cookie)
        assert found is not None
        assert found == session
        assert found.scopes == {Scope.ADMIN}
        assert logins.check(s, code) is None
        assert logins.forget(s) == 1
        assert logins.revoke(s, session.id)
        assert logins.check(s, cookie) is None


def test_the_same_idempotency_key_gets_the_same_answer(database: Database) -> None:
    with database.begin() as s:
        assert idempotency.begin(s, "token:1", "k", "body") is None
        job, _ = jobs.create(s, new_job())
        idempotency.finish(s, "token:1", "k", 202, {"id": job.id})
    with database.begin() as s:
        again = idempotency.begin(s, "token:1", "k", "body")
        assert again is not None
        assert (again.status, again.response) == (202, {"id": job.id})
        assert idempotency.begin(s, "token:2", "k", "other body") is None  # another owner's key
        with pytest.raises(IdempotencyConflict):
            idempotency.begin(s, "token:1", "k", "other body")
        assert idempotency.forget(s) == 0
        assert idempotency.forget(s, older_than_s=-1) == 2


def test_equal_requests_at_once_are_one_job(database_url: str) -> None:
    barrier = threading.Barrier(8, timeout=30)
    made: list[tuple[int, bool]] = []

    def post() -> None:
        own = Database(database_url)
        barrier.wait()
        job, created = own.run(lambda s: jobs.create(s, new_job(8, dedup_key="same")))
        made.append((job.id, created))
        own.close()

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job_id for job_id, _ in made}) == 1
    assert [created for _, created in made].count(True) == 1
    assert len(made) == 8
    database = Database(database_url)
    with database.begin() as s:
        job_id = made[0][0]
        assert len(jobs.problems(s, job_id)) == 1
        jobs.move(s, job_id, JobState.CANCELLED)
        fresh, created = jobs.create(s, new_job(8, dedup_key="same"))
        assert created
        assert fresh.id != job_id
        assert jobs.create(s, new_job(8))[1]  # no key, no twin
    database.close()


def test_jobs_are_listed_and_counted(database: Database) -> None:
    with database.begin() as s:
        token, _ = tokens.create(s, "t", [Scope.SUBMIT])
        ids = [jobs.create(s, new_job(8, token_id=token.id))[0].id for _ in range(3)]
        other, _ = jobs.create(s, new_job(8, 16, priority=9))
        jobs.move(s, ids[0], JobState.PAUSED)
        jobs.move(s, ids[1], JobState.CANCELLED)
        assert jobs.advanceable(s)[0] == [other.id, ids[2]]
        assert [owners.count_open(s, one) for one in (token.id, None)] == [2, 1]
        assert jobs.counts(s) == {JobState.PAUSED: 1, JobState.CANCELLED: 1, JobState.QUEUED: 2}
        page = jobs.listing(s, token_id=token.id, limit=2)
        assert [job.id for job in page.rows] == [ids[2], ids[1]]
        last = jobs.listing(s, token_id=token.id, limit=2, after=page.next)
        assert [job.id for job in last.rows] == [ids[0]]
        assert last.next is None
        assert len(jobs.listing(s, op="gemm", limit=3).rows) == 3
        assert jobs.listing(s, op="attention").rows == ()
        assert [one.title for one in jobs.problems(s, other.id)] == [problem(8).title, problem(16).title]
        assert len(jobs.of_problem_key(s, problem(8).key)) == 4


def test_a_job_with_nothing_to_do_is_done_at_once(database: Database) -> None:
    with database.begin() as s:
        job, created = jobs.create(s, new_job(0, state=JobState.DONE))
        assert created
        assert (job.state, job.open) == (JobState.DONE, False)
        assert [one.state.value for one in jobs.problems(s, job.id)] == ["done"]
        assert jobs.advanceable(s)[0] == []


def test_a_problem_remembers_what_the_search_wants(database: Database) -> None:
    with database.begin() as s:
        job, _ = jobs.create(s, new_job())
        one = jobs.problems(s, job.id)[0]
        jobs.remember(s, one.id, {"since_best": 3})
        jobs.set_budget(s, one.id, trials=10, seconds=2.5, device_seconds=None)
        again = jobs.problem(s, one.id)
        assert again is not None
        assert (again.search, again.budget_trials, again.budget_seconds) == ({"since_best": 3}, 10, 2.5)
        with pytest.raises(NotFound):
            jobs.remember(s, 4711, {})


def test_devices_and_their_workers(database: Database) -> None:
    with database.begin() as s:
        devices.upsert(s, DeviceRecord(DEVICE, "Old name", "cpu", "x86-64-v3", {"cores": 2}))
        devices.set_roof(s, DEVICE, {"gflops": 100.0})
        devices.set_state(s, DEVICE, DeviceState.OUT_OF_SERVICE, "hot")
        devices.upsert(s, DeviceRecord(DEVICE, "New name", "cpu", "x86-64-v3", {"cores": 4}))
        device = devices.get(s, DEVICE)
        assert device is not None
        assert (device.name, device.data, device.roof) == ("New name", {"cores": 4}, {"gflops": 100.0})
        assert (device.state, device.reason) == (DeviceState.OUT_OF_SERVICE, "hot")
        beat(s)
        assert devices.connected(s) == []  # out of service
        devices.set_state(s, DEVICE, DeviceState.AVAILABLE)
        assert [one.key for one in devices.connected(s)] == [DEVICE]
        beat(s)
        assert [one.id for one in workers.alive(s, WorkerKind.MEASURE)] == ["measure-1"]
        s.execute(text("UPDATE workers SET heartbeat_at = '2020-01-01 00:00:00.000000'"))
        assert workers.alive(s) == []
        assert devices.connected(s) == []
        assert workers.forget(s) == 1
        workers.heartbeat(s, "c", WorkerKind.COMPILE, "h", 2, None, WorkerState.BUSY, {"trial": 5})
        one = workers.get(s, "c")
        assert one is not None
        assert (one.state, one.data, one.alive) == (WorkerState.BUSY, {"trial": 5}, True)
        workers.remove(s, "c")
        assert workers.listing(s) == []
        with pytest.raises(NotFound):
            devices.set_roof(s, "gpu-none", {})


def test_demand_adds_up_past_32_bits(database: Database) -> None:
    big = 1 << 33
    with database.begin() as s:
        demand.add(s, [NewDemand(problem(8), DEVICE, POLICY_KEY, "none", 3)])
        demand.add(
            s,
            [
                NewDemand(problem(8), DEVICE, POLICY_KEY, "bucket", big),
                NewDemand(problem(16), DEVICE, POLICY_KEY, "none"),
            ],
        )
        top = demand.ranked(s, device_key=DEVICE).rows
        assert [(one.title, one.count, one.level) for one in top] == [
            (problem(8).title, big + 3, "bucket"),
            (problem(16).title, 1, "none"),
        ]
        assert demand.clear(s, problem(8).key, DEVICE, POLICY_KEY)
        assert not demand.clear(s, problem(8).key, DEVICE, POLICY_KEY)
        assert len(demand.ranked(s).rows) == 1


def test_demand_begins_no_more_rows_than_there_is_room_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "MOST_ROWS", 10)
    monkeypatch.setattr(demand, "LEFT_BY_TIDYING", 8)

    def missed(*sizes: int, count: int = 1) -> list[NewDemand]:
        return [NewDemand(problem(size), DEVICE, POLICY_KEY, "none", count) for size in sizes]

    def sizes() -> set[int]:
        with database.read() as s:
            return {row.problem["m"] for row in demand.ranked(s).rows}

    for size in range(1, 10):
        with database.begin() as s:
            assert demand.add(s, missed(size)) == 1
    with database.begin() as s:
        assert demand.add(s, missed(1, 2, 10, 11, 12)) == 3  # two are known, for one there is room
    assert len(sizes()) == 10
    with database.begin() as s:
        assert demand.add(s, missed(20, 21, count=10**6)) == 0
        assert problems.get(s, problem(20).key) is None
        assert demand.add(s, missed(4, 5, 6, 7, 8)) == 5
    with database.begin() as s:
        assert forget_demand(s, None) == 2
    assert len(sizes()) == 8
    assert not {3, 9} & sizes()  # asked for longest ago
    with database.begin() as s:
        assert forget_demand(s, None) == 0
        assert demand.add(s, missed(30, 31, 32)) == 2


def test_problems_are_stored_once(database: Database) -> None:
    with database.begin() as s:
        for size in (8, 16, 8, 32):
            problems.put(s, problem(size))
        assert problems.get(s, problem(8).key) == problem(8)
        keys = sorted(problem(size).key for size in (8, 16, 32))
        assert [one.key for one in problems.of_layer(s, problem(8).layer_key)] == keys
        page = problems.listing(s, op="gemm", limit=2)
        rest = problems.listing(s, op="gemm", limit=2, after=page.next)
        assert [one.key for one in (*page.rows, *rest.rows)] == keys
        assert problems.listing(s, op="attention").rows == ()
