"""Does a secret ever leave the place where it belongs: by a log, an answer, a row, a file or a command line?

An API process and a search worker run with secrets that the test knows, on a Postgres with a password and a
broker that is not there. They do all they can do, well and badly; then everything that came out is searched.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
import urllib3
from sqlalchemy import URL, make_url
from support.api import gemm

from bench.chaotic.relay import Relay
from service.api.rights import RIGHTS

CPU = "cpu-amd-25-1-2c-x86-64-v3"


@dataclass
class Service:
    """The processes, what is secret, and all that came out of them."""

    home: Path
    url: URL
    relay: Relay
    port: int = 0
    secret: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
        through = self.url.set(host="127.0.0.1", port=self.relay.port("service"))
        return {
            **kept,
            "ROOFTILE_HOME": str(self.home),
            "ROOFTILE_TOKEN": self.secret["admin token"],
            "ROOFTILE_DATABASE_URL": through.render_as_string(hide_password=False),
            "ROOFTILE_BROKER_URL": f"redis://:{self.secret['broker password']}@127.0.0.1:1/0",
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.home / f"{arguments[0]}.log"
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdout=sink, stderr=sink, env=self.environment
            )
        self.processes.append(process)
        return process

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> urllib3.BaseHTTPResponse:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        answer = urllib3.request(
            method,
            f"http://127.0.0.1:{self.port}{path}",
            body=data,
            headers={"Content-Type": "application/json", **headers},
            retries=False,
            redirect=False,
            timeout=20,
        )
        shown = "".join(
            f"{name}: {value}\n"
            for name, value in answer.headers.items()
            if name.lower() != "set-cookie"  # where the cookie belongs
        )
        self.seen[f"{len(self.seen)} {method} {path[:30]} {answer.status}"] = shown + answer.data.decode(
            "utf-8", "replace"
        )
        return answer

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from rooftile.cli import main; sys.exit(main())", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.environment, "ROOFTILE_URL": f"http://127.0.0.1:{self.port}"},
            cwd=self.home,
        )
        self.seen[f"{len(self.seen)} rooftile {' '.join(words)} {done.returncode}"] = (
            done.stdout + done.stderr
        )
        return done


def _until(condition: object, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def service(postgres_url: str, tmp_path: Path) -> Iterator[Service]:
    plain = make_url(postgres_url)
    made = Service(
        tmp_path,
        plain.set(password="pw-" + secrets.token_hex(12)),
        Relay(str(plain.host), plain.port or 5432),
    )
    made.secret = {
        "database password": str(made.url.password),
        "admin token": "adm-" + secrets.token_hex(16),
        "broker password": "brk-" + secrets.token_hex(12),
    }
    try:
        made.start("service.api", "--port", "0")
        log = tmp_path / "service.api.log"
        _until(lambda: b"listening on" in log.read_bytes(), "the API listens")
        made.port = int(re.findall(rb"listening on http://127.0.0.1:(\d+)", log.read_bytes())[0])
        made.start("service.search")
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait(20)
        made.relay.close()


def _exercise(service: Service) -> None:
    """All that a service does with secrets, and its failures."""
    admin = {"Authorization": f"Bearer {service.secret['admin token']}"}
    for scope in ("read", "submit"):
        made = service.command("token", "create", scope, "--scope", scope)
        assert made.returncode == 0, made.stderr
        service.secret[f"{scope} token"] = made.stdout.strip()
        service.seen.popitem()  # its text is shown this once, to whom it was made for
    link = service.command("token", "link")
    service.seen.popitem()
    code = service.secret["login code"] = link.stdout.strip().partition("code=")[2]
    assert len(code) > 30
    entered = service.ask("GET", f"/login?code={code}")
    cookie = service.secret["cookie"] = entered.headers["Set-Cookie"].partition("=")[2].partition(";")[0]
    assert len(cookie) > 30
    service.ask("GET", f"/login?code={code}")  # spent
    service.ask("GET", f"/login?code={code}x")
    browser = {"Cookie": f"rooftile_session={cookie}"}
    page = service.ask("GET", "/", **browser)
    csrf = re.findall(r'name="csrf" value="([^"]+)"', page.data.decode())[0]
    job = {"problem": gemm(m=4, n=64, k=64), "device": CPU, "budget": {"trials": 2}}
    service.ask("POST", "/v1/jobs", job, **admin)
    service.ask("POST", "/v1/jobs", job, **admin, **{"Idempotency-Key": "one"})
    for right in RIGHTS:
        path = re.sub(r"\{[a-z_]+\}", "1", right.path)
        if path.endswith("/events") or path == "/logout":
            continue
        for headers in (admin, browser):
            service.ask(right.method, path, {} if right.changes else None, **headers)
    for name, secret in list(service.secret.items()):
        # in every place where somebody may put it by mistake; what comes back need not repeat it
        wrong = {"Authorization": f"Basic {secret}"} if name != "admin token" else {}
        service.ask("GET", "/v1/jobs", **wrong)
        service.ask("GET", "/v1/jobs", Authorization=f"Bearer {secret}x")
    service.ask("POST", "/v1/jobs", b'{"problem": {', **admin)
    service.command("jobs")
    service.command("doctor")
    service.command("token", "list", "--json")
    service.ask("GET", "/metrics", **admin)
    with urllib3.PoolManager() as pool:
        stream = pool.request(
            "GET",
            f"http://127.0.0.1:{service.port}/v1/jobs/1/events",
            headers=admin,
            preload_content=False,
            timeout=20,
        )
        service.seen["events"] = stream.read(400).decode()
        stream.close()
    # the database goes: every failure is told in an answer, in a log, and by commands
    service.relay.refuse()
    service.relay.cut()
    statuses = {service.ask("GET", path, **admin).status for path in ("/v1/jobs", "/readyz", "/v1/best")}
    assert 503 in statuses
    assert service.command("token", "list").returncode == 1
    assert service.command("migrate").returncode == 1
    time.sleep(1.5)  # the workers fail at it too
    service.relay.heal()
    _until(lambda: service.ask("GET", "/v1/jobs", **admin).status == 200, "the API comes back")
    service.ask("POST", "/logout", f"csrf={csrf}".encode(), **browser)
    service.command("token", "revoke", "1")


def _rows(service: Service) -> Iterator[tuple[str, str]]:
    with psycopg.connect(service.url.set(drivername="postgresql").render_as_string(False)) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (name,) in names:
            rows = connection.execute(f"SELECT t::text FROM {name} t").fetchall()  # type: ignore[call-overload]
            yield f"table {name}", "\n".join(row[0] for row in rows)


def _command_lines(service: Service) -> Iterator[tuple[str, str]]:
    """What everybody on the host can read of our processes and theirs."""
    ours = {process.pid for process in service.processes}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if int(folder.name) in ours or parent in ours:
                yield f"process {folder.name}", words


def test_no_secret_is_found_where_it_does_not_belong(service: Service) -> None:
    started = list(_command_lines(service))
    assert any("service.search" in words for _, words in started)
    _exercise(service)
    found = [*started, *_command_lines(service), *service.seen.items(), *_rows(service)]
    for process in service.processes:
        process.send_signal(signal.SIGTERM)
    for process in service.processes:
        process.wait(30)
    files = [path for path in service.home.rglob("*") if path.is_file()]
    found += [(f"file {path.name}", path.read_bytes().decode("utf-8", "replace")) for path in files]
    logs = dict(found)
    assert "127.0.0.1" in logs["file service.api.log"] + logs["file service.search.log"]
    assert "cannot be reached" in logs["file service.search.log"], "the worker told that the database went"
    assert len(found) > 100
    assert len(service.secret) == 7
    told = [
        f"{name} in {where}"
        for where, text in found
        for name, secret in service.secret.items()
        if secret in text
    ]
    assert told == []
