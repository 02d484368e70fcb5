"""What is let go of old jobs, what is kept, and does a dry run change nothing? On both databases."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update
from support.api import Seed

from service.jobs import retention as running
from service.jobs.retention import Retention, Tidying
from service.settings import Settings
from service.store import artifacts, clock, events, leases, trials
from service.store.database import Database
from service.store.models import Artifact, Event, Job, Lease, Measurement, Trial
from service.store.retention import LOG_CHARACTERS

DAY = timedelta(days=1)


def age(database: Database, job_id: int, days: int) -> None:
    """As if the job had ended, and all its events been written, so long ago."""
    with database.begin() as s:
        then = clock.now(s) - days * DAY
        s.execute(update(Job).where(Job.id == job_id).values(finished_at=then))
        s.execute(update(Event).where(Event.job_id == job_id).values(at=then))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, keep_details_days=30, keep_events_days=90, keep_demand_days=180)


@pytest.fixture
def seed(database: Database) -> Seed:
    made = Seed(database)
    made.device()
    return made


def gemm(m: int) -> dict[str, Any]:
    return {"problem": {"op": "gemm", "m": m, "n": 64, "k": 64, "dtype": "f32"}, "device": "auto"}


def facts(database: Database) -> dict[str, Any]:
    with database.read() as s:
        return {
            "samples": dict(s.execute(select(Measurement.id, Measurement.samples_us)).all()),
            "logs": dict(s.execute(select(Trial.id, Trial.log)).all()),
            "stored": sorted(s.scalars(select(Artifact.sha256).where(Artifact.stored.is_(True)))),
            "events": s.scalar(select(func.count(Event.id))),
        }


def test_old_jobs_lose_their_bulk_and_keep_their_results(
    database: Database, seed: Seed, settings: Settings
) -> None:
    old, release = seed.tuned(gemm(8), times=[900.0, 640.0, 700.0])
    recent, _ = seed.tuned(gemm(9), times=[500.0, 400.0])
    long_log = "a" * 3000 + "z" * 3000
    with database.begin() as s:
        s.execute(update(Trial).values(log=long_log))
    age(database, old.id, 100)
    age(database, recent.id, 10)
    before = facts(database)

    dry = Retention(database, settings, dry=True).run()
    assert facts(database) == before
    counts = Retention(database, settings).run()
    assert counts == dry
    after = facts(database)

    with database.read() as s:
        rows = {row.id: row for row in s.scalars(select(Measurement))}
        of_old = set(s.scalars(select(Trial.id).where(Trial.job_id == old.id)))
        assert s.get_one(Job, old.id).compacted_at is not None
        assert s.get_one(Job, recent.id).compacted_at is None
        # 2 of 3 trials of the old job were in no race: single samples gone, statistics there
        cut = [row for row in rows.values() if not row.samples_us]
        assert {row.trial_id for row in cut} == of_old - {release.trial_id}
        for row in cut:
            told, samples = row.environment["compacted"], before["samples"][row.id]
            assert (told["samples"], told["least_us"], told["most_us"]) == (21, min(samples), max(samples))
            assert row.median_us in (900.0, 700.0)
        best = trials.get(s, release.trial_id or 0)
        assert best is not None
        assert best.time_us == 640.0
    assert counts["measurements"] == 2
    for trial_id, log in after["logs"].items():
        if trial_id in of_old:
            assert LOG_CHARACTERS < len(log) < LOG_CHARACTERS + 60
            assert log.startswith("aaa")
            assert log.endswith("zzz")
            assert "5000 characters left out" in log
        else:
            assert log == long_log
    # The release's kernel and what was raced stay; what can be built again goes, its hash and recipe stay.
    with database.read() as s:
        assert artifacts.get_bytes(s, release.artifact_sha256 or "") is not None
        gone = set(before["stored"]) - set(after["stored"])
        assert len(gone) == counts["artifacts"] == 2
        for sha in gone:
            kept = artifacts.get(s, sha)
            assert kept is not None
            assert kept.recipe
            assert not kept.stored
        # events: only of the old job, and never the newest of all
        assert s.scalars(select(Event).where(Event.job_id == old.id)).all() == []
        assert s.scalar(select(func.count()).where(Event.job_id == recent.id)) > 0  # type: ignore[operator]
    assert Retention(database, settings).run()["jobs"] == 0  # nothing is done twice


def test_the_newest_event_and_those_of_open_jobs_stay(
    database: Database, seed: Seed, settings: Settings
) -> None:
    open_job = seed.job(gemm(8))
    done, _ = seed.tuned(gemm(9), times=[500.0])
    age(database, done.id, 100)
    with database.begin() as s:
        then = clock.now(s) - 100 * DAY
        s.execute(update(Event).values(at=then))
    with database.read() as s:
        newest = events.latest_id(s)
    Retention(database, settings).run()
    with database.read() as s:
        assert events.latest_id(s) == newest
        left = s.scalars(select(Event.job_id)).all()
        assert left.count(open_job.id) >= 1
        assert left.count(done.id) == 1  # the newest of all


def test_zero_days_keep_for_ever(database: Database, seed: Seed, tmp_path: Path) -> None:
    done, _ = seed.tuned(gemm(8), times=[500.0, 600.0])
    age(database, done.id, 10_000)
    before = facts(database)
    forever = Settings(home=tmp_path, keep_details_days=0, keep_events_days=0, keep_demand_days=0)
    assert not +Retention(database, forever).run()
    assert facts(database) == before


def test_one_worker_at_a_time_does_it_and_stops_when_told(
    database: Database, seed: Seed, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = seed.tuned(gemm(8), times=[500.0, 600.0])
    age(database, done.id, 100)
    monkeypatch.setattr(running, "PAUSE_S", 0.0)
    one = Tidying(database, settings, "one", stopping=lambda: True)
    one.step()
    assert Retention(database, settings, dry=True).run()["jobs"] == 1  # told to stop: nothing was done
    with database.begin() as s:
        assert leases.acquire(s, running.LEASE, "another", 60.0) is not None
    two = Tidying(database, settings, "two")
    two.step()
    assert Retention(database, settings, dry=True).run()["jobs"] == 1
    with database.begin() as s:
        assert leases.release(s, running.LEASE, "another")
    began = time.monotonic()
    two.step()
    assert Retention(database, settings, dry=True).run()["jobs"] == 0
    assert time.monotonic() - began < 30
    with database.read() as s:
        assert leases.holder(s, running.LEASE) is None


def test_of_many_search_workers_one_does_it_in_an_hour(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those that start later, and again when the hour is over."""
    ran: list[str] = []

    class Counted(Retention):
        def run(self, go_on: Callable[[], bool] = lambda: True) -> Counter[str]:
            ran.append("")
            return super().run(go_on)

    monkeypatch.setattr(running, "Retention", Counted)
    for number in range(4):
        Tidying(database, settings, f"worker {number}").step()
    assert len(ran) == 1
    with database.begin() as s:
        hour_ago = clock.now(s) - timedelta(seconds=running.EVERY_S + 1)
        s.execute(update(Lease).where(Lease.name == running.DONE).values(expires_at=hour_ago))
    stopped = Tidying(database, settings, "stopped")
    stopped.stopping = lambda: len(ran) == 2  # told to end in the midst of it: the rest is for another
    stopped.step()
    for number in range(4):
        Tidying(database, settings, f"later {number}").step()
    assert len(ran) == 3
