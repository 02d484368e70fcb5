"""Is it the same on SQLite and on Postgres, and what is answered when the database is away?"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url, text
from starlette.testclient import TestClient
from support.api import ADMIN, CPU, gemm

from bench.chaotic.relay import Relay
from service.api import app as app_module
from service.api import tail
from service.api.app import create_app
from service.settings import Settings
from service.store import idempotency, logins, patience, workers
from service.store.enums import Scope, WorkerKind, WorkerState

both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
BODY = {"problem": gemm(), "device": CPU, "budget": {"trials": 60}}


@both
def test_a_job_from_request_to_release(client: TestClient, seed: Any) -> None:
    seed.device()
    created = client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "one"}).json()
    job = seed.job(BODY)
    assert job.id == created["id"]
    row = seed.start(job)[0]
    ids = seed.trials(row, [900.0, 640.0, 700.0])
    release = seed.release(row, ids[1], 640.0, 900.0, seed.race(row, [ids[1]], 900.0))
    seed.end(job)
    shown = client.get(f"/v1/jobs/{job.id}").json()
    assert (shown["state"], shown["best"]["speedup"]) == ("done", 900.0 / 640.0)
    assert shown["best"]["release_id"] == release.id
    page = client.get(f"/v1/jobs/{job.id}/trials?order=fastest&limit=2").json()
    assert [t["id"] for t in page["trials"]] == [ids[1], ids[2]]
    rest = client.get(f"/v1/jobs/{job.id}/trials?order=fastest&page_token={page['next_page_token']}")
    assert [t["id"] for t in rest.json()["trials"]] == [ids[0]]
    assert client.get(f"/v1/trials/{ids[1]}").json()["measurements"][0]["median_us"] == 640.0
    assert client.post("/v1/best", json={"problem": gemm(), "device": CPU}).json()["level"] == "exact"
    told = client.get("/v1/releases").json()
    assert [r["release_id"] for r in told["releases"]] == [release.id]
    assert client.post(f"/v1/releases/{release.id}:withdraw").json()["change_id"] > told["after"]
    stream = client.get(f"/v1/jobs/{job.id}/events").text
    assert "event: end" in stream
    assert (
        client.post("/v1/demand", json={"misses": [{"problem": gemm(2), "device": CPU}]}).status_code == 202
    )
    assert client.get("/v1/demand").json()["demand"][0]["count"] == 1
    etag = client.get("/v1/archs").headers["ETag"]
    assert client.get("/v1/archs", headers={"If-None-Match": etag}).status_code == 304


@both
def test_the_dashboard(anonymous: TestClient, seed: Any) -> None:
    seed.device()
    job, release = seed.tuned()
    with seed.database.begin() as s:
        code = logins.create_code(s, {Scope.ADMIN})
    assert anonymous.get(f"/login?code={code}").status_code == 303
    assert anonymous.get(f"/login?code={code}").status_code == 403
    for path in (
        "/",
        "/?text=4096&op=gemm&dtype=f32",
        "/jobs",
        f"/jobs/{job.id}",
        f"/trials/{release.trial_id}",
    ):
        assert anonymous.get(path).status_code == 200, path


@both
def test_one_key_and_one_request_at_once_make_one_job(client: TestClient, seed: Any) -> None:
    seed.device()
    answers: list[Any] = []

    def post(n: int) -> None:
        headers = {"Idempotency-Key": "same"} if n % 2 else {}
        answers.append(client.post("/v1/jobs", json=BODY, headers=headers))

    threads = [threading.Thread(target=post, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {a.status_code for a in answers} <= {202, 409}
    assert sum(a.status_code == 202 for a in answers) >= 12
    assert len({a.json()["id"] for a in answers if a.status_code == 202}) == 1
    assert len(client.get("/v1/jobs").json()["jobs"]) == 1


@both
def test_text_that_a_database_refuses_never_reaches_it(client: TestClient, seed: Any) -> None:
    for path in (
        "/v1/jobs?page_token=%00",
        "/v1/releases?device=%00",
        "/v1/demand?device=a%00b",
        "/v1/spaces?op=%00&arch=x86-64-v3",
        "/v1/jobs/%00",
        f"/v1/problems/{'0' * 63}%00",
    ):
        assert client.get(path).status_code in (404, 422), path
    assert client.get("/v1/jobs", headers={"Authorization": "Bearer a\x01b"}).status_code == 401
    assert client.get("/login?code=a%00b").status_code == 403


@both
def test_ready_says_which_workers_are_missing(anonymous: TestClient, seed: Any, settings: Settings) -> None:
    ready = anonymous.get("/readyz").json()
    assert ready["missing"] == ["search", "compile", "measure"]
    assert ready["database"] in settings.database_url
    seed.device()
    with seed.database.begin() as s:
        workers.heartbeat(s, "c", WorkerKind.COMPILE, "host", 2, None, WorkerState.IDLE)
    ready = anonymous.get("/readyz").json()
    assert (ready["missing"], ready["devices"]) == (["search"], [CPU])
    assert ready["workers"] == {"measure": 1, "compile": 1}


@both
def test_an_older_api_is_unready_once_a_newer_one_has_migrated(
    anonymous: TestClient, seed: Any, settings: Settings
) -> None:
    assert anonymous.get("/readyz").status_code == 200
    with seed.database.begin() as s:
        s.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    answer = anonymous.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["field"] == "migrations"
    assert "at revision 9999 of a newer version" in answer.json()["detail"]
    assert anonymous.get("/healthz").status_code == 200


def test_a_database_that_does_not_answer_is_503_in_one_sentence(tmp_path: Path) -> None:
    url = "postgresql+psycopg://nobody:secret@127.0.0.1:1/none"
    with TestClient(create_app(Settings(home=tmp_path, database_url=url))) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/openapi.json").status_code == 200
        for path in ("/readyz", "/v1/jobs", "/v1/best"):
            method = "POST" if path == "/v1/best" else "GET"
            answer = client.request(method, path, headers={"Authorization": f"Bearer {ADMIN}"})
            assert answer.status_code == 503, path
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert int(answer.headers["Retry-After"]) >= 1
            detail = answer.json()["detail"]
            assert detail.count(".") >= 1
            assert "secret" not in answer.text
            assert "\n" not in detail
        page = client.get("/jobs", headers={"Accept": "text/html", "Cookie": "rooftile_session=x"})
        assert page.status_code == 503
        assert "503" in page.text


def test_a_database_that_goes_away_and_comes_back(
    client: TestClient, settings: Settings, seed: Any, tmp_path: Path
) -> None:
    assert client.get("/v1/jobs").status_code == 200
    file = tmp_path / "rooftile.db"
    client.app.state.rooftile.database.close()  # type: ignore[attr-defined]
    seed.database.close()
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for part in tmp_path.glob("rooftile.db*"):
        shutil.move(part, hidden / part.name)
    answer = client.get("/v1/jobs")
    assert answer.status_code == 503
    assert answer.headers["Content-Type"] == "application/problem+json"
    client.app.state.rooftile.database.close()  # type: ignore[attr-defined]
    for part in tmp_path.glob("rooftile.db*"):
        part.unlink()
    for part in hidden.iterdir():
        shutil.move(part, tmp_path / part.name)
    assert file.exists()
    assert client.get("/v1/jobs").status_code == 200


def test_a_database_without_tables_says_what_to_do(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, token=SecretStr(ADMIN))
    with pytest.raises(Exception, match="rooftile migrate"):
        create_app(settings, check=True)


@pytest.mark.parametrize("settings", ["postgres"], indirect=True)
def test_a_key_in_progress_is_409_at_once_and_free_again_when_its_request_died(
    client: TestClient, seed: Any
) -> None:
    headers = {"Idempotency-Key": "slow"}
    with seed.database.begin() as s:
        # another process answers the same request of the same token right now, and dies
        assert idempotency.begin(s, "token:1", "slow", "0" * 64) is None
        start = time.monotonic()
        refused = client.post("/v1/jobs", json=BODY, headers=headers)
        assert time.monotonic() - start < 4  # it does not wait for the other one
        assert (refused.status_code, refused.json()["field"]) == (409, "Idempotency-Key")
        assert refused.headers["Retry-After"] == "1"
        s.rollback()
    assert client.post("/v1/jobs", json=BODY, headers=headers).status_code == 202


def test_a_postgres_that_holds_its_peace_is_503_at_once(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "AWAY_S", 1.0)
    there = make_url(postgres_url)
    relay = Relay(there.host or "127.0.0.1", there.port or 5432)
    through = there.set(host="127.0.0.1", port=relay.port("api")).render_as_string(hide_password=False)
    app = create_app(Settings(home=tmp_path, database_url=through, token=SecretStr(ADMIN)))
    headers = {"Authorization": f"Bearer {ADMIN}"}
    state = app.state.rooftile
    try:
        with TestClient(app, base_url="http://127.0.0.1:8417") as client:
            _wait_for(lambda: not state.tail.away)
            assert client.get("/v1/jobs", headers=headers).status_code == 200
            relay.hold()
            _wait_for(lambda: state.tail.away)
            start = time.monotonic()
            for _ in range(40):  # more than there are threads
                answer = client.get("/v1/jobs", headers=headers)
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
            assert time.monotonic() - start < 10
            relay.heal()
            _wait_for(lambda: not state.tail.away)
            _wait_for(lambda: client.get("/v1/jobs", headers=headers).status_code == 200)
    finally:
        relay.close()


def test_who_asks_a_postgres_that_freezes_gets_503_and_its_thread_is_free_again(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "STATEMENT_S", 1.0)
    monkeypatch.setattr(patience, "SILENT_S", 0.5)
    monkeypatch.setattr(tail, "AWAY_S", 600.0)  # only the limit of the statement helps
    there = make_url(postgres_url)
    relay = Relay(there.host or "127.0.0.1", there.port or 5432)
    through = there.set(host="127.0.0.1", port=relay.port("api")).render_as_string(hide_password=False)
    app = app_module.create_app(Settings(home=tmp_path, database_url=through, token=SecretStr(ADMIN)))
    headers = {"Authorization": f"Bearer {ADMIN}"}
    ask = {"problem": gemm(), "device": CPU}
    try:
        with TestClient(app, base_url="http://127.0.0.1:8417") as client:
            assert client.get("/v1/jobs", headers=headers).status_code == 200
            relay.hold()  # takes and acknowledges everything, as a stopped process's kernel does
            for method, path, body in (("GET", "/v1/jobs", None), ("POST", "/v1/best", ask)):
                start = time.monotonic()
                answer = client.request(method, path, headers=headers, json=body)
                assert answer.status_code == 503, answer.text
                assert answer.headers["Retry-After"] in ("2", "5")  # the second may know it by the first
                assert time.monotonic() - start < 20
            _wait_for(lambda: app.state.rooftile.tail.away)  # the reader of events gave up too
            relay.heal()
            _wait_for(lambda: not app.state.rooftile.tail.away)
            _wait_for(lambda: client.get("/v1/jobs", headers=headers).status_code == 200)
    finally:
        relay.close()


def _wait_for(true: Callable[[], bool], most_s: float = 20.0) -> None:
    deadline = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@both
def test_demand_comes_in_pages(client: TestClient, seed: Any) -> None:
    misses = [{"problem": gemm(m), "device": CPU, "count": 1 + m % 3} for m in range(1, 8)]
    assert client.post("/v1/demand", json={"misses": misses}).status_code == 202
    whole = client.get("/v1/demand").json()
    assert whole["next_page_token"] is None
    assert [row["count"] for row in whole["demand"]] == [3, 3, 2, 2, 2, 1, 1]
    rows: list[dict[str, Any]] = []
    token = ""
    while token is not None:
        page = client.get("/v1/demand", params={"limit": 2, "page_token": token}).json()
        assert 1 <= len(page["demand"]) <= 2
        rows, token = rows + page["demand"], page["next_page_token"]
    assert rows == whole["demand"]
