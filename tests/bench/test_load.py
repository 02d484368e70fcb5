"""Is what bench.load asks for there, and does its generator count what comes back?"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from pydantic import SecretStr
from support.served import served

from bench import load
from bench.loading import generator
from bench.loading.connection import BrokenAnswer, Connection, request
from bench.loading.seed import DEVICE, TRIALS, Seeded, seed
from service.api import lookup
from service.api.app import create_app
from service.jobs.submit import submit
from service.settings import Settings
from service.store import events, jobs, releases, trials
from service.store.database import Database
from service.store.enums import JobState, TrialState

COUNT = 45
TOKEN = "a-token-of-the-load-0123456789"


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    made = Database(postgres_url, name="rooftile-test")
    yield made
    made.close()


@pytest.fixture
def seeded(database: Database) -> Seeded:
    return seed(database, COUNT)


def test_every_problem_has_its_trials_and_a_release_that_is_found(database: Database, seeded: Seeded) -> None:
    assert (seeded.trials, seeded.releases) == ((COUNT + 1) * TRIALS, COUNT + 1)
    assert len({one.key for one in seeded.problems}) == COUNT
    with database.read() as s:
        for problem in seeded.problems:
            answer = lookup.best(s, lookup.parse({"problem": problem.to_json(), "device": DEVICE}))
            assert answer.level == "exact"
        rows = jobs.listing(s, limit=100).rows
        assert {row.state for row in rows} == {JobState.DONE}
        for job in rows:
            for row in jobs.problems(s, job.id):
                of = trials.of_problem(s, row.id)
                assert len(of) == TRIALS
                assert {one.state for one in of} == {TrialState.MEASURED}
                detail = trials.detail(s, of[-1].id)
                assert detail is not None
                assert len(detail.measurements) == 1
        changes = releases.changes(s, limit=200)
        assert len({one.change_id for one in changes}) == COUNT + 1
        for one in changes:
            trial = trials.get(s, one.trial_id or 0)
            assert trial is not None
            assert (trial.job_problem_id, trial.problem_key) == (one.job_problem_id, one.problem_key)


@pytest.fixture
def port(postgres_url: str, seeded: Seeded, tmp_path: Path) -> Iterator[int]:
    settings = Settings(home=tmp_path, database_url=postgres_url, token=SecretStr(TOKEN))
    with served(create_app(settings)) as number:
        yield number


def test_loads_are_answered_and_counted(port: int, seeded: Seeded) -> None:
    bodies = load._lookups(seeded)
    order: dict[str, Any] = {"host": "127.0.0.1", "port": port, "token": TOKEN}
    ask = {**order, "path": "/v1/best", "bodies": bodies, "connections": 4}
    once = asyncio.run(generator.run({**ask, "kind": "closed", "seconds": 60, "once": True}))
    assert once["statuses"] == {200: COUNT}
    steady = asyncio.run(generator.run({**ask, "kind": "open", "seconds": 1.0, "rate": 50}))
    assert (steady["sent"], steady["right"]) == (50, 50)
    assert 0 < steady["p50_ms"] <= steady["p99_ms"]
    pages = asyncio.run(generator.run({**order, "kind": "pages", "paths": ["/v1/jobs", "/x"], "times": 2}))
    assert [one["status"] for one in pages["pages"]] == [200, 404]
    stranger = {**ask, "kind": "closed", "seconds": 60, "once": True, "token": "x" * 20}
    wrong = asyncio.run(generator.run(stranger))
    assert wrong["per_s"] == 0
    refused = asyncio.run(
        generator.run({**ask, "kind": "open", "seconds": 0.5, "rate": 20, "token": "x" * 20})
    )
    assert (refused["sent"], refused["right"]) == (10, 0)
    assert refused["p50_ms"] == 1e3 * generator.UNANSWERED_S, "a wrong answer is no fast one"


def test_a_connection_that_ends_is_told(port: int) -> None:
    async def ask() -> None:
        connection = await Connection.open("127.0.0.1", port)
        answer = await connection.ask(request("GET", "/healthz", TOKEN))
        assert answer.status == 200
        assert json.loads(answer.body)
        connection._writer.transport.abort()
        with pytest.raises(BrokenAnswer):
            await connection.ask(request("GET", "/healthz", TOKEN))

    asyncio.run(ask())


def test_streams_are_opened_and_what_they_tell_is_noted(port: int, database: Database) -> None:
    problem = {"op": "gemm", "m": 3, "n": 64, "k": 64, "dtype": "f32"}
    job, _ = submit(database, {"problem": problem, "device": DEVICE, "force": True})
    with database.read() as s:
        after = events.latest_id(s)

    def tell() -> None:
        with database.begin() as s:
            for _ in range(3):
                events.note(s, job.id, "test")

    async def follow() -> dict[str, Any]:
        paths = [f"/v1/jobs/{job.id}/events?after={after}"] * 20
        telling = asyncio.get_running_loop().call_later(3.0, tell)
        found = await generator.streams("127.0.0.1", port, paths, TOKEN, 6.0)
        telling.cancel()
        return found

    started_s = time.time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the generator's process does
        found = runner.run(follow())
    assert [[number for number, _ in one] for one in found["seen"]] == [[after + n for n in (1, 2, 3)]] * 20
    assert all(started_s < at < time.time() for one in found["seen"] for _, at in one)
    assert found["ended"] == 0
