"""Is it kept who did what, from where, without a secret, and shown to admins alone, page by page?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient
from support.api import ADMIN, CPU

from service.api.app import create_app
from service.api.auth import COOKIE
from service.cli import token_command
from service.jobs.releases import withdraw_quarantined
from service.settings import Settings
from service.store import audit, clock, events, logins, quarantines
from service.store.enums import AuditAction, EventKind, Scope, TrialReason
from service.store.models import Audit

both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)


def told(client: TestClient, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    token = ""
    while True:
        answer = client.get("/v1/audit", params={**query, "limit": 3, "page_token": token})
        assert answer.status_code == 200, answer.text
        rows += answer.json()["audit"]
        token = answer.json()["next_page_token"]
        if token is None:
            return rows


@both
def test_what_people_do_is_kept_with_who_and_where(client: TestClient, seed: Any) -> None:
    seed.device()
    _job, release = seed.tuned()
    for verb in ("pin", "unpin", "withdraw"):
        assert client.post(f"/v1/releases/{release.id}:{verb}").status_code == 200
    assert client.post(f"/v1/releases/{release.id}:pin").status_code == 409  # nothing was done
    assert client.post(f"/v1/devices/{CPU}:suspend", json={"reason": "a fan"}).status_code == 200
    assert client.post(f"/v1/devices/{CPU}:resume").status_code == 200
    with seed.database.begin() as s:
        code = logins.create_code(s, {Scope.ADMIN})
    del client.headers["Authorization"]
    assert client.get(f"/login?code={code}").status_code == 303
    assert client.get("/login?code=wrong").status_code == 403
    client.headers["Authorization"] = f"Bearer {ADMIN}"
    rows = told(client)
    assert [row["action"] for row in rows][::-1] == [
        "token_made", "release_pinned", "release_unpinned", "release_withdrawn",
        "device_suspended", "device_resumed", "login",
    ]  # fmt: skip
    pinned = rows[-2]
    assert (pinned["actor"], pinned["origin"]) == ("token:1", "testclient")
    assert pinned["subject"] == f"release:{release.id}"
    assert pinned["data"]["device"] == CPU
    assert rows[2]["data"] == {"reason": "a fan"}
    assert rows[0]["actor"] == "session:1"
    assert [row["id"] for row in told(client, action="login")] == [rows[0]["id"]]
    everything = client.get("/v1/audit?limit=200").text
    assert ADMIN not in everything
    assert code not in everything
    assert client.get("/v1/audit?action=logni").json()["nearest"] == "login"


@both
def test_what_the_service_does_by_its_rules_is_there_too(client: TestClient, seed: Any) -> None:
    seed.device()
    job, release = seed.tuned()
    with seed.database.begin() as s:
        quarantines.add(
            s,
            family="gemm_x86",
            arch=release.arch,
            schedule_key=release.schedule_key,
            toolchain_key=release.toolchain_key,
            reason=TrialReason.WRONG_RESULT,
        )
        assert [one.id for one in withdraw_quarantined(s)] == [release.id]
    with seed.database.read() as s:
        moves = [one for one in events.after(s, 0, job_id=job.id) if one.kind is EventKind.RELEASE]
    assert [one.to for one in moves][-2:] == ["published", "withdrawn"]
    assert "wrong result" in str(moves[-1].reason)
    newest = told(client)[0]
    assert (newest["action"], newest["subject"]) == ("release_withdrawn", f"release:{release.id}")
    assert newest["actor"] == "service"
    assert "wrong result" in newest["data"]["reason"]


def test_only_admins_see_it(anonymous: TestClient, seed: Any) -> None:
    for scope, status in ((Scope.READ, 403), (Scope.SUBMIT, 403), (Scope.ADMIN, 200)):
        headers = {"Authorization": f"Bearer {seed.token(scope)}"}
        assert anonymous.get("/v1/audit", headers=headers).status_code == status


def test_commands_and_the_token_of_a_service_are_kept(
    client: TestClient, settings: Settings, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", str(settings.home))
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", settings.database_url)
    assert token_command.main(["create", "somebody", "--scope", "read", "--json"]) == 0
    assert token_command.main(["revoke", "2"]) == 0
    assert token_command.main(["link"]) == 0
    rows = told(client)
    assert [(row["actor"], row["action"]) for row in rows[:3]] == [
        ("command", "link_made"), ("command", "token_revoked"), ("command", "token_made"),
    ]  # fmt: skip
    assert rows[2]["data"]["name"] == "somebody"
    # the same token once more is no news, another one is
    create_app(settings)
    assert len(told(client)) == len(rows)
    create_app(settings.model_copy(update={"token": SecretStr("another-token-0123456789")}))
    with seed.database.read() as s:
        new = audit.listing(s, limit=2).rows
    assert [(row.actor, row.action) for row in new] == [
        ("service", "token_made"), ("service", "token_revoked"),
    ]  # fmt: skip


@both
def test_a_command_logs_browsers_out(
    anonymous: TestClient, settings: Settings, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", str(settings.home))
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", settings.database_url)

    def code() -> str:
        with seed.database.begin() as s:
            return logins.create_code(s, {Scope.ADMIN})

    cookies = []
    for _ in range(4):
        anonymous.cookies.clear()
        assert anonymous.get(f"/login?code={code()}").status_code == 303
        cookies.append(anonymous.cookies[COOKIE])
    waiting = code()

    def let_in() -> list[bool]:
        seen = []
        for cookie in cookies:
            anonymous.cookies.clear()
            anonymous.cookies.set(COOKIE, cookie)
            seen.append(anonymous.get("/v1/jobs").status_code == 200)
        anonymous.cookies.clear()
        return seen

    # a session is nobody's token's: the end of a token does not end it
    assert token_command.main(["revoke", "1"]) == 0
    assert let_in() == [True, True, True, True]
    assert token_command.main(["logout", "2"]) == 0
    assert let_in() == [True, False, True, True]
    assert token_command.main(["logout", "2"]) == 1
    assert token_command.main(["logout"]) == 0
    assert let_in() == [False, False, False, False]
    assert anonymous.get(f"/login?code={waiting}").status_code == 403
    with seed.database.read() as s:
        rows = audit.listing(s, action=AuditAction.LOGOUT).rows
    assert [(row.actor, row.subject) for row in rows] == [
        ("command", "session:4"),
        ("command", "session:3"),
        ("command", "session:1"),
        ("command", "session:2"),
    ]


@both
def test_what_is_old_is_let_go(settings: Settings, seed: Any) -> None:
    with seed.database.begin() as s:
        for _ in range(3):
            audit.write(s, audit.command(), AuditAction.LOGIN, "x")
        s.flush()
        s.get_one(Audit, 1).at = clock.now(s) - timedelta(days=400)
    with seed.database.begin() as s:
        assert audit.forget(s, 365 * 86400.0) == 1
    with seed.database.read() as s:
        assert [row.id for row in audit.listing(s).rows] == [3, 2]
