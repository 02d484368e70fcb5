"""Do ids and sums go on past 31, 53 and 63 bits, in the database, in JSON and on the pages?"""

from __future__ import annotations

import json

import pytest
from sqlalchemy import BigInteger, Integer, text
from sqlalchemy.dialects import postgresql
from starlette.testclient import TestClient
from support.api import CPU, Seed, anonymous, app, client, gemm, seed, settings

from service.store.models import Base

__all__ = ["anonymous", "app", "client", "seed", "settings"]

both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
PAST_31 = 2**31 + 100
HUGE = {"op": "gemm", "m": 2_100_000, "n": 2_100_000, "k": 2_100_000, "dtype": "f32"}


def test_every_id_is_64_bits_wide() -> None:
    """Also those that name another table's."""
    narrow = [
        str(column)
        for table in Base.metadata.tables.values()
        for column in table.columns
        if isinstance(kind := column.type.dialect_impl(postgresql.dialect()), Integer)
        and not isinstance(kind, BigInteger)
        and (column.primary_key or column.foreign_keys or column.name.endswith(("_id", "bytes", "count")))
    ]
    assert narrow == []


@pytest.mark.parametrize("settings", ["postgres"], indirect=True)  # SQLite knows one width only
def test_ids_go_on_past_31_bits(client: TestClient, seed: Seed) -> None:
    with seed.database.begin() as s:
        query = "SELECT sequencename FROM pg_sequences WHERE schemaname = 'public'"
        names = s.execute(text(query)).scalars().all()
        assert len(names) >= 8
        for name in names:
            s.execute(text(f"SELECT setval('{name}', {PAST_31})"))
    seed.device()
    job, release = seed.tuned()
    assert min(job.id, release.id, release.trial_id or 0) > PAST_31
    shown = client.get(f"/v1/jobs/{job.id}").json()
    assert shown["id"] == job.id
    page = client.get(f"/v1/jobs/{job.id}/trials?limit=2").json()
    assert page["trials"][0]["id"] > PAST_31
    rest = client.get(f"/v1/jobs/{job.id}/trials?limit=2&page_token={page['next_page_token']}").json()
    assert rest["trials"]
    assert client.get(f"/v1/trials/{release.trial_id}").status_code == 200
    assert client.post("/v1/best", json={"problem": gemm(), "device": CPU}).json()["level"] == "exact"
    changes = client.get("/v1/releases").json()
    assert [row["release_id"] for row in changes["releases"]] == [release.id]
    assert client.get(f"/v1/releases?after={changes['after']}").json()["releases"] == []
    events = client.get(f"/v1/jobs/{job.id}/events").text
    last = max(int(line.partition(":")[2]) for line in events.splitlines() if line.startswith("id:"))
    assert last > PAST_31
    assert client.get(f"/v1/jobs/{job.id}/events", headers={"Last-Event-ID": str(last)}).status_code == 200
    for path in ("/", "/jobs", f"/jobs/{job.id}", f"/trials/{release.trial_id}"):
        assert client.get(path).status_code == 200, path
    assert client.post(f"/v1/releases/{release.id}:pin").json()["pinned"] is True


@both
def test_work_past_63_bits_is_shown_as_a_float_by_design(client: TestClient, seed: Seed) -> None:
    """2*m*n*k of one such problem is 1.9e19: over what 64 bits hold, and what JSON's readers hold exactly."""
    miss = {"problem": HUGE, "device": CPU, "count": 2}
    assert client.post("/v1/demand", json={"misses": [miss]}).status_code == 202
    row = client.get("/v1/demand").json()["demand"][0]
    shown = client.get(f"/v1/problems/{row['problem_key']}")
    flops = json.loads(shown.content, parse_int=_Whole)["flops"]
    assert type(flops) is float
    assert flops == 2.0 * 2_100_000**3
    assert client.get("/").status_code == 200


class _Whole(int):
    """A number that was sent without a point."""


@both
def test_counts_that_add_up_past_63_bits_stay_counts(client: TestClient, seed: Seed) -> None:
    """Whoever posts the largest count over and over gets no error, and no count turns negative."""
    seed.device()
    most = 2**53
    miss = {"problem": gemm(), "device": CPU, "count": 1}
    assert client.post("/v1/demand", json={"misses": [miss]}).status_code == 202
    with seed.database.begin() as s:
        s.execute(text(f"UPDATE demand SET count = {most - 10}"))
    for count in (1000, 10**9):
        assert client.post("/v1/demand", json={"misses": [{**miss, "count": count}]}).status_code == 202
    rows = client.get("/v1/demand").json()["demand"]
    assert [row["count"] for row in rows] == [most]
