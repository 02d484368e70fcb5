"""Does each token, and each job of it, get its share of the workers?"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, text, update
from support.store import (
    ARCH,
    DEVICE,
    GPU_ARCH,
    POLICY,
    add_device,
    compile_all,
    compiled,
    emulated,
    gpu_job,
    measured,
    measurement,
    running_job,
    verdict,
)

from service.jobs.reaper import Reaper
from service.store import emulation_claims, jobs, races, shares, tokens, trials
from service.store.database import Database
from service.store.enums import EntrantRole, JobState, Scope
from service.store.models import Share, Trial
from service.store.records import EntrantResult, MeasureClaim, NewEntrant, RaceOutcome


@pytest.fixture
def two(database: Database) -> tuple[int, int]:
    """Two tokens, and the device."""
    with database.begin() as s:
        add_device(s)
        first, second = (tokens.create(s, name, [Scope.SUBMIT])[0].id for name in ("one", "two"))
    return first, second


def ready(db: Database, count: int, **changes: object) -> int:
    """A running job with so many trials that wait for the device."""
    with db.begin() as s:
        job_id, _ = running_job(s, count, **changes)
        compile_all(s)
    return job_id


@dataclass
class Device:
    """A measure worker that takes as long as `cost` says, by job."""

    db: Database
    cost: dict[int, float] = field(default_factory=dict)
    served: Counter[int] = field(default_factory=Counter)
    seconds: Counter[int] = field(default_factory=Counter)

    def claim(self, limit: int = 1) -> list[MeasureClaim]:
        with self.db.begin() as s:
            return trials.claim_measure(s, "w", DEVICE, limit, 60)

    def work(self, count: int, limit: int = 1, noise: random.Random | None = None) -> list[int]:
        """The jobs of the next trials, in their order."""
        order = []
        while len(order) < count and (claims := self.claim(min(limit, count - len(order)))):
            for claim in claims:
                used = self.cost.get(claim.job_id, 1.0) * (1 if noise is None else noise.uniform(0.1, 1.9))
                with self.db.begin() as s:
                    assert trials.finish_measure(s, claim.claim_id, measured(10.0, device_s=used))
                self.served[claim.job_id] += 1
                self.seconds[claim.job_id] += used
                order.append(claim.job_id)
        return order


@pytest.mark.parametrize("limit", [1, 4])
def test_one_job_of_a_token_gets_as_much_as_ten_of_another(
    database: Database, two: tuple[int, int], limit: int
) -> None:
    many = [ready(database, 40, token_id=two[0]) for _ in range(10)]
    alone = ready(database, 200, token_id=two[1])
    noise = random.Random(limit)
    device = Device(database, cost={job_id: noise.uniform(0.2, 3.0) for job_id in (*many, alone)})
    assert len(device.work(200, limit, noise)) == 200
    total = sum(device.seconds.values())
    assert 0.4 < device.seconds[alone] / total < 0.6
    # within the token as well, but for what one claim may take
    each = [device.seconds[job_id] for job_id in many]
    assert max(each) - min(each) < 3 * limit * 3.0
    assert min(each) > 0


def test_a_claim_of_several_has_some_of_each(database: Database) -> None:
    long = ready(database, 30)
    device = Device(database)
    device.work(8, 4)
    short = ready(database, 6)
    took = [claim.job_id for claim in device.claim(4)]
    assert Counter(took) == {long: 2, short: 2}
    # those of a job stand together: each change costs its inputs
    assert took[0] == took[1]


def test_what_is_under_way_counts_before_it_has_ended(database: Database) -> None:
    first, second = ready(database, 10), ready(database, 10)
    device = Device(database)
    seen = Counter(device.claim(1)[0].job_id for _ in range(8))
    assert seen == {first: 4, second: 4}
    # and no more once its worker is known to be dead
    with database.begin() as s:
        trials.expire(s, owner="w")
        assert shares.served(s, shares.measure(DEVICE)) == {}


def test_a_higher_priority_goes_first_all_the_same(database: Database, two: tuple[int, int]) -> None:
    low = ready(database, 10, token_id=two[0])
    high = ready(database, 10, token_id=two[1], priority=5)
    device = Device(database)
    assert device.work(10, 4) == [high] * 10
    assert device.work(4, 4) == [low] * 4


def test_idling_saves_nothing_up_and_work_done_alone_is_not_held_against_anyone(
    database: Database, two: tuple[int, int]
) -> None:
    busy, idle = ready(database, 300, token_id=two[0]), ready(database, 2, token_id=two[1])
    device = Device(database)
    device.work(4)
    assert device.served == {busy: 2, idle: 2}
    assert set(device.work(100, 4)) == {busy}
    back = ready(database, 100, token_id=two[1])
    device.served.clear()
    device.work(40)
    # a hundred seconds behind, it may go before by some trials, and then takes turns
    assert back in device.served
    assert abs(device.served[back] - device.served[busy]) <= shares.CREDIT + 2
    device.served.clear()
    device.work(40)
    assert device.served == {back: 20, busy: 20}


def test_a_race_has_its_turn_before_trials_and_does_not_jump_a_priority(database: Database) -> None:
    racing = ready(database, 3)
    device = Device(database, cost={racing: 2.0})
    device.work(3)
    ready(database, 20)
    with database.begin() as s:
        row = jobs.problems(s, racing)[0]
        for _ in range(2):
            races.create(s, row.id, [NewEntrant("baseline", EntrantRole.BASELINE, None)], POLICY, 7)
        with_priority = running_job(s, 3, priority=1)[0]
        compile_all(s)
    with database.begin() as s:
        assert races.claim(s, "w", DEVICE, 60) is None
    assert device.work(3, 4) == [with_priority] * 3
    # one turn each, whatever a trial of the other takes: the race waits for no more than that
    order = []
    while len(order) < 8:
        with database.begin() as s:
            claim = races.claim(s, "w", DEVICE, 60)
            if claim is not None:
                result = EntrantResult(
                    "baseline", EntrantRole.BASELINE, None, measurement(9.0), verdict(), None
                )
                assert races.finish(s, claim.claim_id, RaceOutcome((result,), {}, {}, device_s=3.0))
        order += ["trial"] * len(device.work(1)) if claim is None else ["race"]
    # a race of three seconds, three trials of one
    assert order.count("race") == 2
    assert order.index("race") < 4
    assert "trial" in order[order.index("race") + 1 :][:3]


def test_a_batch_ends_where_a_race_is_next(database: Database) -> None:
    racing, other = ready(database, 1), ready(database, 20)
    device = Device(database)
    device.work(2)
    with database.begin() as s:
        row = jobs.problems(s, racing)[0]
        races.create(s, row.id, [NewEntrant("baseline", EntrantRole.BASELINE, None)], POLICY, 7)
    assert [claim.job_id for claim in device.claim(4)] == [other]


def test_nothing_is_claimed_ahead_when_it_is_a_races_turn(database: Database) -> None:
    with database.begin() as s:
        add_device(s)
        racer, _ = running_job(s, 1)
        trials_of, _ = running_job(s, 8)
        compile_all(s, count=9)
        row = jobs.problems(s, racer)[0]
        claims = trials.claim_measure(s, "w", DEVICE, 1, 60, ahead=True)
        assert len(claims) == 1
        races.create(s, row.id, [NewEntrant("baseline", EntrantRole.BASELINE, None)], POLICY, 7)
        # the racer's own trial is under way, so the other's come first
        owners = {one.job_id for one in trials.claim_measure(s, "w", DEVICE, 2, 60, ahead=True)}
        assert owners == {trials_of}
        # two of the other's are under way, one of the racer's: its race is next
        assert trials.claim_measure(s, "w", DEVICE, 4, 60, ahead=True) == []
        assert races.claim(s, "w", DEVICE, 60) is not None
        assert len(trials.claim_measure(s, "w", DEVICE, 4, 60, ahead=True)) == 4


def test_compiles_and_runs_in_the_emulator_are_shared_too(database: Database, two: tuple[int, int]) -> None:
    with database.begin() as s:
        many = {running_job(s, 20, token_id=two[0])[0] for _ in range(5)}
        alone = running_job(s, 40, token_id=two[1])[0]
    seconds: Counter[bool] = Counter()
    for number in range(60):
        with database.begin() as s:
            (claim,) = trials.claim_compile(s, "w", 1, 60, [ARCH])
            used = 3.0 if claim.job_id == alone else 1.0
            built = compiled(f"{number}".encode(), compile_s=used)
            assert trials.finish_compile(s, claim.claim_id, built)
        assert claim.job_id in {alone, *many}
        seconds[claim.job_id == alone] += used
    assert 0.4 < seconds[True] / seconds.total() < 0.6
    with database.begin() as s:
        for token_id in (two[0], two[0], two[1]):
            for trial in gpu_job(s, 4, token_id=token_id):
                for claim in trials.claim_compile(s, "w", 1, 60, [GPU_ARCH]):
                    structure = {"of": claim.trial_id}
                    built = compiled(f"gpu {claim.trial_id}".encode(), structure=structure, ptx=b"ptx")
                    assert trials.finish_compile(s, claim.claim_id, built), trial
    owners = []
    for _ in range(6):
        with database.begin() as s:
            run = emulation_claims.claim(s, "w", 60, [GPU_ARCH])
            assert run is not None
            assert emulation_claims.finish(s, run.claim_id, emulated())
            job = jobs.get(s, run.job_id)
        assert job is not None
        owners.append(job.token_id)
    assert Counter(owners) == {two[0]: 3, two[1]: 3}


def test_accounts_of_ended_jobs_and_idle_tokens_are_cleared_away(
    database: Database, two: tuple[int, int]
) -> None:
    ended, going = ready(database, 4, token_id=two[0]), ready(database, 4, token_id=two[1])
    Device(database).work(6)
    queue = shares.measure(DEVICE)
    with database.begin() as s:
        jobs.move(s, ended, JobState.CANCELLED)
        old = update(Share).where(Share.owner == f"token:{two[0]}")
        s.execute(old.values(updated_at=datetime(2020, 1, 1, tzinfo=UTC)))
    Reaper(database, "reaper", one_host=False).reap(1e9)
    with database.read() as s:
        assert set(shares.served(s, queue)) == {f"job:{going}", f"token:{two[1]}"}


def test_claimers_at_once_neither_wait_in_a_circle_nor_take_twice(
    database: Database, two: tuple[int, int]
) -> None:
    for number in range(8):
        ready(database, 10, token_id=two[number % 2])
    done: list[int] = []
    faults: list[Exception] = []

    def work(name: str) -> None:
        try:
            while True:
                with database.begin() as s:
                    claims = trials.claim_measure(s, name, DEVICE, 3, 60)
                if not claims:
                    return
                for claim in claims:
                    with database.begin() as s:
                        assert trials.finish_measure(s, claim.claim_id, measured(10.0, device_s=0.5))
                done.extend(claim.trial_id for claim in claims)
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert len(done) == len(set(done)) == 80
    with database.read() as s:
        accounts = shares.served(s, shares.measure(DEVICE))
    assert sum(value for owner, value in accounts.items() if owner.startswith("job")) >= 40.0


def test_a_claim_among_many_jobs_and_ended_trials_takes_milliseconds(database: Database) -> None:
    with database.begin() as s:
        add_device(s)
        rows = [running_job(s, 4)[1] for _ in range(200)]
        compile_all(s, count=800)
        first = s.get_one(Trial, rows[0][0].id)
        skip = ("id", "number", "schedule_key", "stage", "state", "plan")
        same = {c.key: getattr(first, c.key) for c in Trial.__mapper__.column_attrs if c.key not in skip}
        for start in range(0, 20_000, 5_000):
            ended = [
                {**same, "number": 100 + n, "schedule_key": f"{n:064x}", "stage": "done", "state": "measured"}
                for n in range(start, start + 5_000)
            ]
            s.execute(insert(Trial), ended)
    if database.dialect == "postgresql":
        with database.begin() as s:
            s.execute(text("ANALYZE"))
    device = Device(database)
    device.work(20)
    took = []
    for _ in range(10):
        started = time.perf_counter()
        assert len(device.claim(4)) == 4
        took.append(time.perf_counter() - started)
    print(database.dialect, [f"{one * 1e3:.1f}" for one in sorted(took)])
    assert min(took) < 0.05  # the machine may be busy, but not with all ten
