"""How soon does a revoked token stop looking up, in a process that knows it from a moment ago?"""

from __future__ import annotations

import time
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.api import CPU, gemm

from service.api import known
from service.api.known import KnownTokens
from service.store import events, tokens
from service.store.enums import Scope

both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
ASK = {"problem": gemm(), "device": CPU}


def status(client: TestClient, token: str) -> int:
    return client.post("/v1/best", json=ASK, headers={"Authorization": f"Bearer {token}"}).status_code


def made(seed: Any, name: str) -> tuple[int, str]:
    with seed.database.begin() as s:
        record, clear = tokens.create(s, name, {Scope.READ})
    return record.id, clear


@both
def test_the_event_of_a_revocation_ends_it(
    client: TestClient, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "KNOWN_S", 600.0)  # only the event can end it
    (number, clear), (_, other) = made(seed, "one"), made(seed, "other")
    assert status(client, clear) == status(client, other) == 200
    remembered: KnownTokens = client.app.state.rooftile.known_tokens  # type: ignore[attr-defined]
    assert remembered.get(tokens.digest(clear)) is not None
    with seed.database.begin() as s:
        assert tokens.revoke(s, number)
    deadline = time.monotonic() + 20
    while status(client, clear) != 401:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert status(client, other) == 200


def test_a_token_that_another_takes_the_place_of_ends_too(
    client: TestClient, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "KNOWN_S", 600.0)
    old, new = "an-old-token-0123456789", "a-new-token-0123456789"
    with seed.database.begin() as s:
        tokens.ensure(s, "named", {Scope.READ}, old)
    assert status(client, old) == 200
    with seed.database.begin() as s:
        tokens.ensure(s, "named", {Scope.READ}, new)
    deadline = time.monotonic() + 20
    while status(client, old) != 401:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert status(client, new) == 200


def test_without_events_a_token_is_known_for_a_second(
    client: TestClient, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = client.app.state.rooftile  # type: ignore[attr-defined]
    remembered: KnownTokens = state.known_tokens
    monkeypatch.setattr(state.tail, "_tell", lambda _rows: None)
    number, clear = made(seed, "one")
    assert status(client, clear) == 200
    with seed.database.begin() as s:
        tokens.revoke(s, number)
    time.sleep(known.KNOWN_S + 0.1)
    assert remembered.get(tokens.digest(clear)) is None
    assert status(client, clear) == 401


def test_what_was_read_before_a_revocation_is_not_kept_after_it(seed: Any) -> None:
    with seed.database.begin() as s:
        record, clear = tokens.create(s, "one", {Scope.READ})
    remembered, hashed = KnownTokens(), tokens.digest(clear)
    epoch = remembered.epoch()
    remembered.keep(hashed, record, epoch, time.monotonic())
    assert remembered.get(hashed) == record
    with seed.database.begin() as s:
        tokens.revoke(s, record.id)
    with seed.database.read() as s:
        rows = events.after(s, 0)
    remembered.told(rows[:-1])
    assert remembered.get(hashed) == record
    remembered.told(rows)
    assert remembered.get(hashed) is None
    remembered.keep(hashed, record, epoch, time.monotonic())
    assert remembered.get(hashed) is None
