"""Does /metrics tell what the database and the process know, cheaply, and only to who may read?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from starlette.testclient import TestClient
from support.api import CPU

from service.metrics import database as gathering
from service.settings import Settings
from service.store import devices, trials
from service.store.enums import DeviceState, Scope, TrialReason

both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
Sample = tuple[str, frozenset[tuple[str, str]]]


def read(client: TestClient) -> dict[Sample, float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(one.name, frozenset(one.labels.items())): one.value for f in families for one in f.samples}


def key(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look asks the database."""
    monkeypatch.setattr(gathering, "GATHER_S", 0.0)
    monkeypatch.setattr(gathering, "GATHER_BYTES_S", 0.0)


@both
def test_what_waits_and_what_ended(client: TestClient, seed: Any, fresh: None, settings: Settings) -> None:
    seed.device()
    seed.tuned(times=[900.0, 640.0, TrialReason.WRONG_RESULT])
    found = read(client)
    assert found[key("rooftile_database_up")] == 1
    assert found[key("rooftile_trials_total", state="measured", reason="")] == 2
    assert found[key("rooftile_trials_total", state="failed", reason="wrong_result")] == 1
    assert found[key("rooftile_jobs", state="done")] == 1
    assert found[key("rooftile_jobs", state="running")] == 0
    assert found[key("rooftile_releases", state="published")] == 1
    assert found[key("rooftile_device_noise_ratio", device=CPU)] == 0.006
    assert found[key("rooftile_workers", kind="measure", state="idle")] == 1
    assert 0 <= found[key("rooftile_worker_heartbeat_age_seconds", kind="measure")] < 60
    assert found[key("rooftile_device_connected", device=CPU, arch="x86-64-v4")] == 1
    assert found[key("rooftile_queue_length", queue="compile")] == 0
    assert found[key("rooftile_artifact_bytes", kind="kernel")] > 0

    # Later trials are counted by their events; what waits is told with its age.
    job = seed.job({"problem": {"op": "gemm", "m": 9, "n": 64, "k": 64, "dtype": "f32"}, "device": CPU})
    problem = seed.start(job)[0]
    seed.propose(problem, 5)
    seed.compile(2, failing=True)
    with seed.database.begin() as s:
        assert len(trials.claim_compile(s, "dead", 1, -1.0, ["x86-64-v4"])) == 1
        devices.set_state(s, CPU, DeviceState.OUT_OF_SERVICE, "tests")
    found = read(client)
    assert found[key("rooftile_trials_total", state="failed", reason="compile_error")] == 2
    assert found[key("rooftile_trials_total", state="measured", reason="")] == 2
    assert found[key("rooftile_queue_length", queue="compile")] == 2
    assert 0 <= found[key("rooftile_queue_oldest_seconds", queue="compile")] < 60
    assert found[key("rooftile_claims", kind="trial", state="expired")] == 1
    assert found[key("rooftile_claims", kind="trial", state="held")] == 0
    assert found[key("rooftile_device_out_of_service", device=CPU)] == 1
    assert found[key("rooftile_jobs", state="running")] == 1


def test_requests_are_counted_by_template_and_strangers_as_one(client: TestClient, seed: Any) -> None:
    job = seed.job()
    for path in (f"/v1/jobs/{job.id}", "/v1/jobs/999", "/nowhere/1", "/nowhere/2", "/wp-admin"):
        client.get(path)
    client.head("/v1/jobs")
    client.post("/v1/best", json={"problem": {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}})
    found = read(client)
    one = "/v1/jobs/{job_id}"
    assert found[key("rooftile_http_requests_total", route=one, method="GET", status="200")] == 1
    assert found[key("rooftile_http_requests_total", route=one, method="GET", status="404")] == 1
    assert found[key("rooftile_http_requests_total", route="other", method="GET", status="404")] == 3
    assert found[key("rooftile_http_request_seconds_count", route=one)] == 2
    assert found[key("rooftile_lookups_total", level="none")] == 1
    assert found[key("rooftile_event_streams")] == 0
    assert found[key("rooftile_database_pool_connections", state="most")] > 4
    assert not any("nowhere" in value for _name, labels in found for _label, value in labels)


def test_the_database_is_asked_once_however_often_one_scrapes(client: TestClient, app: Any) -> None:
    engine = app.state.rooftile.database.engine()
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    read(client)
    first = [one for one in asked if "GROUP BY" in one]
    assert first
    for _ in range(5):
        read(client)
    assert [one for one in asked if "GROUP BY" in one] == first


def test_it_needs_a_token_that_may_read(
    anonymous: TestClient, as_token: Callable[[str], TestClient], seed: Any
) -> None:
    assert anonymous.get("/metrics").status_code == 401
    assert as_token(seed.token(Scope.READ)).get("/metrics").status_code == 200


def test_a_database_that_is_away_is_a_figure(client: TestClient, app: Any, fresh: None) -> None:
    """Prometheus asks with a token, which the process knows for a while; the collector must not fail."""
    from service.store.errors import DatabaseUnreachable

    state = app.state.rooftile

    def away() -> None:
        raise DatabaseUnreachable("away")

    read(client)
    state.database.read = away
    text = state.metrics.text().decode()
    assert "rooftile_database_up 0.0" in text
    assert "rooftile_queue_length" not in text


def test_ready_names_each_check(client: TestClient, settings: Settings) -> None:
    assert client.get("/readyz").json()["checks"] == {
        "database": "ok", "migrations": "ok", "clock": "ok"
    }  # fmt: skip


def test_request_ids_are_taken_over_only_where_well_formed(client: TestClient) -> None:
    assert (
        client.get("/healthz", headers={"X-Request-ID": "proxy-0123"}).headers["X-Request-ID"] == "proxy-0123"
    )
    for bad in ("short", "a b c d e f g", "x" * 65, "12345678\u00e9".encode("latin-1"), '"><script>alert'):
        got = client.get(
            "/healthz", headers=[(b"X-Request-ID", bad if isinstance(bad, bytes) else bad.encode())]
        )
        assert len(got.headers["X-Request-ID"]) == 16
    twice = client.get("/healthz", headers=[("X-Request-ID", "proxy-0123"), ("X-Request-ID", "proxy-0124")])
    assert len(twice.headers["X-Request-ID"]) == 16
    ids = {client.get("/v1/nothing").headers["X-Request-ID"] for _ in range(3)}
    assert len(ids) == 3
