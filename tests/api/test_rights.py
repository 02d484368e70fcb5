"""Does every route and command let in who may, and nobody else: each cell of service/api/rights.py?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import typer.main
import urllib3
from fastapi import FastAPI
from rooftile import cli, cli_commands
from rooftile.problem import parse_problem
from sqlalchemy import text
from starlette.routing import Mount
from support.api import CPU, Seed, gemm
from support.served import served

from service.api.auth import COOKIE, CSRF_HEADER
from service.api.rights import COMMANDS, RIGHTS, CommandRight, Kind, Right, Who, in_page
from service.cli import device_command, token_command
from service.paths import source_root
from service.store import logins, tokens
from service.store.enums import Scope
from service.store.records import BrowserSession

GROUPS = {"token": token_command.app, "device": device_command.app}
"""Commands whose words have rights of their own."""
GEMM = ["gemm", "--m", "8", "--n", "4096", "--k", "4096", "--dtype", "f32"]


# -- is everything in the table? --------------------------------------------------------------------------


def _routes(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """(method, path) of each route that there is, whatever holds it."""
    for route in routes:
        if hasattr(route, "original_router"):
            yield from _routes(route.original_router.routes)
        elif isinstance(route, Mount):
            yield "GET", route.path
        else:
            # a route of a kind that is not known here (a websocket) has no methods, and fails
            for method in route.methods - {"HEAD", "OPTIONS"}:
                yield method, getattr(route, "path_format", route.path)


def test_every_route_is_in_the_table_and_only_those(app: FastAPI) -> None:
    there = list(_routes(app.routes))
    assert len(there) > 30
    listed = [(right.method, right.path) for right in RIGHTS]
    assert len(set(listed)) == len(listed)
    assert set(there) - set(listed) == set(), "add it to service/api/rights.py, and run that"
    assert set(listed) - set(there) == set(), "a row of service/api/rights.py for a route that is gone"


def test_every_command_is_in_the_table_and_only_those() -> None:
    there = set(cli_commands.COMMANDS)
    for entry in entry_points(group=cli.GROUP):
        app = GROUPS.get(entry.name)
        words = [] if app is None else list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
        there |= {f"{entry.name} {word}" for word in words} or {entry.name}
    assert there == {command.words for command in COMMANDS}


def test_the_page_shows_the_table() -> None:
    root = source_root()
    assert root is not None
    page = (root / "docs" / "security.md").read_text(encoding="utf-8")
    assert page == in_page(page), "run python -m service.api.rights"


# -- the cells --------------------------------------------------------------------------------------------


@dataclass
class World:
    """An app over a real socket, rows for each path, and a way in for each column."""

    port: int
    seed: Seed
    tokens: dict[Who, str]
    ended: tuple[BrowserSession, str]
    """A session that was logged out, and its cookie."""
    ids: dict[str, str]

    def ask(self, right: Right, who: Who) -> str:
        """What this one meets there: `yes`, `401`, `403`, `login`, or the status that none of these is."""
        headers = {}
        if who in self.tokens:
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        csrf = self._cookie(headers, who)
        path = right.path.replace("{key}", self._key(right)).format(**self.ids) + _QUERIES.get(right.path, "")
        body = None
        if right.changes and right.kind is Kind.API:
            headers |= {"Content-Type": "application/json"} | ({CSRF_HEADER: csrf} if csrf else {})
            body = json.dumps(_BODIES.get(right.path, {}))
        elif right.changes:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode({"csrf": csrf} if csrf else {})
        answer = urllib3.request(
            right.method,
            f"http://127.0.0.1:{self.port}{path}",
            body=body,
            headers=headers,
            redirect=False,
            retries=False,
            timeout=30,
        )
        return self._judge(answer)

    def _cookie(self, headers: dict[str, str], who: Who) -> str | None:
        """A session of this cell's own, since some routes end it; its CSRF token where it is to be sent."""
        if who not in (Who.COOKIE, Who.COOKIE_ALONE, Who.GONE_COOKIE):
            return None
        session, cookie = self.ended if who is Who.GONE_COOKIE else logged_in(self.seed)
        headers["Cookie"] = f"{COOKIE}={cookie}"
        return None if who is Who.COOKIE_ALONE else session.csrf

    def _key(self, right: Right) -> str:
        for word, name in (("/problems/", "problem"), ("/layers/", "layer")):
            if word in right.path:
                return self.ids[name]
        return self.ids["device"]

    @staticmethod
    def _judge(answer: urllib3.BaseHTTPResponse) -> str:
        if answer.status in (401, 403):
            return str(answer.status)
        # logging out leads there too, and takes the cookie away
        if answer.headers.get("Location") == "/login" and "Set-Cookie" not in answer.headers:
            return "login"
        # 409: whoever may ask is told that the job has ended
        return "yes" if answer.status in (200, 202, 303, 307, 409) else f"{answer.status} {answer.data!r}"

    def rows(self) -> list[Any]:
        """What a change would change."""
        tables = ("jobs", "releases", "devices", "demand", "events")
        with self.seed.database.read() as s:
            return [s.execute(text(f"SELECT * FROM {name} ORDER BY 1")).all() for name in tables]


_BODIES: dict[str, Any] = {
    "/v1/jobs": {"problem": gemm(m=4), "device": CPU, "budget": {"trials": 2}},
    "/v1/best": {"problem": gemm(), "device": CPU},
    "/v1/demand": {"misses": [{"problem": gemm(), "device": CPU}]},
    "/v1/devices/{key}:suspend": {"reason": "a test"},
}
_QUERIES = {"/v1/spaces": "?op=gemm&arch=x86-64-v3", "/static": "/rooftile.css"}


def logged_in(seed: Seed) -> tuple[BrowserSession, str]:
    with seed.database.begin() as s:
        made = logins.redeem(s, logins.create_code(s, {Scope.ADMIN}))
    assert made is not None
    return made


@pytest.fixture
def world(app: FastAPI, seed: Seed) -> Iterator[World]:
    seed.device()
    job, release = seed.tuned()
    problem = parse_problem(gemm())
    with seed.database.begin() as s:
        made = {
            Who.READ: tokens.create(s, "reader", {Scope.READ}),
            Who.SUBMIT: tokens.create(s, "submitter", {Scope.SUBMIT}),
            Who.ADMIN: tokens.create(s, "admin", {Scope.ADMIN}),
            Who.EXPIRED: tokens.create(s, "expired", {Scope.ADMIN}, expires_in_s=-1),
            Who.REVOKED: tokens.create(s, "revoked", {Scope.ADMIN}),
        }
        tokens.revoke(s, made[Who.REVOKED][0].id)
        s.execute(text("UPDATE jobs SET token_id = :id"), {"id": made[Who.SUBMIT][0].id})
        artifact = s.execute(text("SELECT sha256 FROM artifacts ORDER BY sha256 LIMIT 1")).scalar_one()
    ended = logged_in(seed)
    with seed.database.begin() as s:
        assert logins.revoke(s, ended[0].id)
    ids = {
        "job_id": str(job.id),
        "trial_id": str(release.trial_id),
        "release_id": str(release.id),
        "digest": str(artifact),
        "verb": "pause",
        "problem": problem.key,
        "layer": problem.layer().key,
        "device": CPU,
    }
    with served(app) as port:
        yield World(port, seed, {who: clear for who, (_, clear) in made.items()}, ended, ids)


def test_each_cell(world: World) -> None:
    cells = [(right, who, right.outcome(who)) for right in RIGHTS for who in Who]
    before = world.rows()
    for allowed in (False, True):
        wrong = [
            f"{right.method} {right.path} by {who.value}: {met}, not {wanted}"
            for right, who, wanted in cells
            if (wanted == "yes") is allowed and (met := world.ask(right, who)) != wanted
        ]
        assert not wrong, "\n".join(wrong)
        assert (world.rows() == before) is not allowed, "who is refused changes nothing"


def test_a_job_is_steered_by_its_own_token_or_an_admin(world: World, seed: Seed) -> None:
    """The notes of the table: the scope submit is for one's own jobs."""
    other = seed.token(Scope.SUBMIT)
    verbs = [right for right in RIGHTS if right.note]
    assert len(verbs) == 4
    for right in verbs:
        assert world.ask(right, Who.SUBMIT) == "yes"
        assert world.ask(right, Who.ADMIN) == "yes"
    world.tokens[Who.SUBMIT] = other
    before = world.rows()
    assert [world.ask(right, Who.SUBMIT) for right in verbs] == ["403"] * 4
    assert world.rows() == before


def test_a_token_that_is_revoked_ends_within_seconds(world: World) -> None:
    right = next(right for right in RIGHTS if right.path == "/v1/devices")
    assert world.ask(right, Who.READ) == "yes"
    with world.seed.database.begin() as s:
        by_name = {row.name: row for row in tokens.listing(s)}
        tokens.revoke(s, by_name["reader"].id)
    # each API process takes a token for what it was for a second
    until = time.monotonic() + 5
    while (met := world.ask(right, Who.READ)) == "yes" and time.monotonic() < until:
        time.sleep(0.1)
    assert met == "401"


# -- commands ---------------------------------------------------------------------------------------------

_WORDS = {
    "submit": ["submit", *GEMM, "--device", CPU, "--trials", "2"],
    "watch": ["watch", "1", "--json"],
    "jobs": ["jobs"],
    "trial": ["trial", "1"],
    "best": ["best", *GEMM],
    "explain": ["explain", *GEMM],
    "version": ["version"],
}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command as a user who has this token and a home without anything: (exit code, output)."""

    def run(words: list[str], port: int, token: str | None, **more: str) -> tuple[int, str]:
        home = tmp_path / "stranger"
        home.mkdir(exist_ok=True)
        for name in ("ROOFTILE_TOKEN", "ROOFTILE_DATABASE_URL"):
            monkeypatch.delenv(name, raising=False)
        given = {"ROOFTILE_URL": f"http://127.0.0.1:{port}", "ROOFTILE_HOME": str(home), **more}
        if token is not None:
            given["ROOFTILE_TOKEN"] = token
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        code = cli.main(words)
        out, err = capsys.readouterr()
        return code, out + err

    return run


@pytest.mark.parametrize("row", [row for row in COMMANDS if row.words in _WORDS], ids=lambda row: row.words)
def test_a_command_may_what_its_token_may(row: CommandRight, world: World, command: Run) -> None:
    order = [Scope.READ, Scope.SUBMIT, Scope.ADMIN]
    for who, scope in zip((Who.READ, Who.SUBMIT, Who.ADMIN), order, strict=True):
        code, told = command(_WORDS[row.words], world.port, world.tokens[who])
        if row.needs is None or order.index(scope) >= order.index(row.needs):
            assert code == 0, (who, told)
        else:
            assert code == 1, (who, told)
            assert f"This needs the scope {row.needs}." in told
    for token in (None, world.tokens[Who.EXPIRED], world.tokens[Who.REVOKED]):
        code, told = command(_WORDS[row.words], world.port, token)
        assert code == (0 if row.needs is None else 1), told
        assert row.needs is None or "ROOFTILE_TOKEN" in told


_ON_THE_DATABASE = {
    "token create": ["token", "create", "mine", "--scope", "admin"],
    "token list": ["token", "list"],
    "token revoke": ["token", "revoke", "1"],
    "token logout": ["token", "logout"],
    "token link": ["token", "link"],
    "device list": ["device", "list"],
    "device suspend": ["device", "suspend", CPU, "a test"],
    "device resume": ["device", "resume", CPU],
    "compact": ["compact", "--dry-run"],
}


def test_what_opens_the_database_asks_for_the_database_and_no_token(world: World, command: Run) -> None:
    """An admin's token does not help who has not the database; who has it needs none."""
    rows = [row.words for row in COMMANDS if row.opens == "the database" and row.words != "migrate"]
    assert rows == list(_ON_THE_DATABASE)
    url = world.seed.database.engine().url.render_as_string(hide_password=False)
    before = world.rows()
    for words in _ON_THE_DATABASE.values():
        code, told = command(words, world.port, world.tokens[Who.ADMIN])
        assert code == 1, told
    assert world.rows() == before
    for words in _ON_THE_DATABASE.values():
        assert command(words, world.port, None, ROOFTILE_DATABASE_URL=url)[0] == 0, words
