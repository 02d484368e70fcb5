"""Who may do what, with a token and with a browser?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.api.auth import COOKIE
from service.store import logins
from service.store.enums import Scope
from service.store.records import TokenRecord

OPEN = ("/healthz", "/readyz", "/openapi.json", "/login")
READ = (
    "/v1/jobs",
    "/v1/devices",
    "/v1/archs",
    "/v1/releases",
    "/v1/demand",
    "/v1/jobs/1",
    "/v1/jobs/1/events",
)
SUBMIT = ("/v1/jobs", "/v1/jobs/1:cancel", "/v1/jobs/1:pause", "/v1/jobs/1:resume")
ADMIN = tuple(f"/v1/releases/1:{verb}" for verb in ("pin", "unpin", "rollback", "withdraw"))


def code_of(seed: Any, scope: Scope = Scope.ADMIN, expires_in_s: float = 600.0) -> str:
    with seed.database.begin() as s:
        return logins.create_code(s, {scope}, expires_in_s)


def log_in(client: TestClient, seed: Any, scope: Scope = Scope.ADMIN) -> TestClient:
    answer = client.get(f"/login?code={code_of(seed, scope)}")
    assert answer.status_code == 303, answer.text
    return client


def test_without_a_token_only_health_and_login_answer(anonymous: TestClient) -> None:
    for path in OPEN:
        assert anonymous.get(path).status_code == 200, path
    for path in READ:
        answer = anonymous.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer realm=")
    for path in (*SUBMIT, *ADMIN, "/v1/best", "/v1/demand"):
        assert anonymous.post(path, json={}).status_code == 401, path


@pytest.mark.parametrize(
    "header",
    ["Bearer ", "Bearer nonsense", "Basic dXNlcjpwYXNz", "Bearer " + "x" * 5000, "bearer", "Bearer é"],
)
def test_a_wrong_token_is_401_also_beside_a_good_cookie(
    anonymous: TestClient, seed: Any, header: str
) -> None:
    log_in(anonymous, seed)
    answer = anonymous.get("/v1/jobs", headers={"Authorization": header.encode("utf-8")})
    assert answer.status_code == 401
    assert "error=" in answer.headers["WWW-Authenticate"]


def test_each_scope_opens_what_it_says(seed: Any, as_token: Callable[[str], TestClient]) -> None:
    clients = {scope: as_token(seed.token(scope)) for scope in Scope}
    order = [Scope.READ, Scope.SUBMIT, Scope.ADMIN]
    for paths, needed, method in (
        (READ, Scope.READ, "GET"),
        (SUBMIT, Scope.SUBMIT, "POST"),
        (ADMIN, Scope.ADMIN, "POST"),
    ):
        for path in paths:
            for scope, client in clients.items():
                status = client.request(method, path, json={} if method == "POST" else None).status_code
                allowed = order.index(scope) >= order.index(needed)
                assert (status != 403) == allowed, (path, scope, status)
                assert status != 401


def test_a_revoked_token_stops_working(seed: Any, as_token: Callable[[str], TestClient]) -> None:
    from service.store import tokens

    with seed.database.begin() as s:
        record, clear = tokens.create(s, "gone", {Scope.READ})
        assert isinstance(record, TokenRecord)
    client = as_token(clear)
    assert client.get("/v1/jobs").status_code == 200
    with seed.database.begin() as s:
        tokens.revoke(s, record.id)
    assert client.get("/v1/jobs").status_code == 401


def test_a_link_logs_in_once_with_a_cookie_no_script_reads(anonymous: TestClient, seed: Any) -> None:
    code = code_of(seed)
    first = anonymous.get(f"/login?code={code}")
    assert (first.status_code, first.headers["Location"]) == (303, "/")
    cookie = first.headers["Set-Cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    for word in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert word in cookie
    assert anonymous.get("/").status_code == 200
    assert anonymous.get("/v1/jobs").status_code == 200
    anonymous.cookies.clear()
    again = anonymous.get(f"/login?code={code}")
    assert again.status_code == 403
    assert "Set-Cookie" not in again.headers


@pytest.mark.parametrize("code", ["", "x", "é", "%00", "x" * 200])
def test_codes_that_were_never_made_do_nothing(anonymous: TestClient, code: str) -> None:
    assert anonymous.get(f"/login?code={code}").status_code == 403


def test_an_old_code_does_nothing(anonymous: TestClient, seed: Any) -> None:
    assert anonymous.get(f"/login?code={code_of(seed, expires_in_s=-1.0)}").status_code == 403


def test_a_head_request_does_not_spend_a_code(anonymous: TestClient, seed: Any) -> None:
    code = code_of(seed)
    assert anonymous.head(f"/login?code={code}").status_code == 405
    assert anonymous.get(f"/login?code={code}").status_code == 303


def csrf_of(page: str) -> str:
    return page.split('name="csrf" value="', 1)[1].split('"', 1)[0]


def test_a_cookie_changes_nothing_without_its_csrf_token(anonymous: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    log_in(anonymous, seed)
    csrf = csrf_of(anonymous.get("/").text)
    assert len(csrf) >= 20
    for path in (f"/v1/jobs/{job.id}:pause", f"/jobs/{job.id}/pause"):
        for data in ({}, {"csrf": ""}, {"csrf": "wrong"}):
            assert anonymous.post(path, data=data).status_code == 403, path
    assert anonymous.post("/logout", data={"csrf": "wrong"}).status_code == 403
    assert anonymous.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"
    assert anonymous.post(f"/v1/jobs/{job.id}:pause", headers={"X-CSRF-Token": csrf}).status_code == 200
    done = anonymous.post(f"/jobs/{job.id}/resume", data={"csrf": csrf})
    assert (done.status_code, done.headers["Location"]) == (303, f"/jobs/{job.id}")


def test_logging_out_ends_the_session_and_not_only_the_cookie(anonymous: TestClient, seed: Any) -> None:
    log_in(anonymous, seed)
    csrf = csrf_of(anonymous.get("/").text)
    kept = anonymous.cookies[COOKIE]
    assert anonymous.post("/logout", data={"csrf": csrf}).headers["Location"] == "/login"
    anonymous.cookies.clear()
    anonymous.cookies.set(COOKIE, kept)
    assert anonymous.get("/v1/jobs").status_code == 401
    assert anonymous.get("/").headers["Location"] == "/login"


def test_a_reader_sees_no_buttons_and_may_not_press_them(anonymous: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    log_in(anonymous, seed, Scope.READ)
    page = anonymous.get(f"/jobs/{job.id}")
    assert page.status_code == 200
    assert "Cancel job" not in page.text
    answer = anonymous.post(f"/jobs/{job.id}/cancel", data={"csrf": csrf_of(page.text)})
    assert answer.status_code == 403


def test_tokens_and_codes_are_not_in_the_database_in_clear(seed: Any, anonymous: TestClient) -> None:
    token, code = seed.token(Scope.READ), code_of(seed)
    log_in(anonymous, seed)
    cookie = anonymous.cookies[COOKIE]
    folder = seed.database._url.database.rsplit("/", 1)[0]
    from pathlib import Path

    raw = b"".join(path.read_bytes() for path in Path(folder).glob("rooftile.db*"))
    assert b"a test" in raw
    for secret in (token, code, cookie):
        assert secret.encode() not in raw
