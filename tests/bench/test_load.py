"""Is what bench.load asks for there, and does its generator count what comes back?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from support.served import served

from bench import load
from bench.loading import generator
from bench.loading.connection import BrokenAnswer, Connection, request
from bench.loading.seed import DEVICE, TRIALS, Seeded, seed
from service.api import lookup
from service.api.app import create_app
from service.settings import Settings
from service.store import jobs, releases, trials
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
    assert (steady["sent"], steady["answered"]) == (50, 50)
    assert 0 < steady["p50_ms"] <= steady["p99_ms"]
    pages = asyncio.run(generator.run({**order, "kind": "pages", "paths": ["/v1/jobs", "/x"], "times": 2}))
    assert [one["status"] for one in pages["pages"]] == [200, 404]
    stranger = {**ask, "kind": "closed", "seconds": 60, "once": True, "token": "x" * 20}
    wrong = asyncio.run(generator.run(stranger))
    assert wrong["per_s"] == 0


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
