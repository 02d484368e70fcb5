"""Does every line say who says it and what about, as text and as JSON?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, threading
import structlog
from service.bus import about, say_who, setup_logs
setup_logs()
say_who(process="measure", worker="measure@box/1")
log = structlog.get_logger("rooftile.test")
with about(job_id=7, trial_id=9):
    log.info("inside", more=1)
    threading.Thread(target=lambda: log.info("another thread")).start()
log.info("outside")
logging.getLogger("celery.worker").warning("lost %s", "connection")
try:
    secret = "hunter2"
    1 / 0
except ZeroDivisionError as error:
    log.error("failed", exc_info=error)
"""


REQUEST = """
import sys
from pydantic import SecretStr
from starlette.testclient import TestClient
from service.api import lookup
from service.api.app import create_app
from service.bus import setup_logs
from service.settings import Settings
from service.store import migrate
setup_logs()
url = f"sqlite:///{sys.argv[1]}/rooftile.db"
migrate.upgrade(url)
token = "a-token-of-the-tests-0123456789"
def fail(*_): raise RuntimeError("not thought of")
lookup.best_of = fail
app = create_app(Settings(home=sys.argv[1], database_url=url, token=SecretStr(token)))
problem = {"op": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "f32"}
body = {"problem": problem, "device": "cpu-intel-6-85-8c-x86-64-v4"}
with TestClient(app, raise_server_exceptions=False) as client:
    headers = {"Authorization": f"Bearer {token}", "X-Request-ID": "from-the-proxy-1"}
    answer = client.post("/v1/best", json=body, headers=headers)
    assert (answer.status_code, answer.headers["X-Request-ID"]) == (500, "from-the-proxy-1")
    assert "Content-Security-Policy" in answer.headers
    assert answer.headers["Cache-Control"] == "private, no-cache"
"""


def said(script: str = SCRIPT, *arguments: str, **variables: str) -> list[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_is_one_object_a_line() -> None:
    lines = {line["event"]: line for line in map(json.loads, said(ROOFTILE_LOG_FORMAT="json"))}
    assert set(lines) == {"inside", "another thread", "outside", "lost connection", "failed"}
    for line in lines.values():
        assert (line["process"], line["worker"]) == ("measure", "measure@box/1")
        assert {"timestamp", "level", "pid"} <= set(line)
    assert (lines["inside"]["job_id"], lines["inside"]["trial_id"], lines["inside"]["more"]) == (7, 9, 1)
    assert "job_id" not in lines["outside"]
    assert "job_id" not in lines["another thread"]
    assert lines["lost connection"]["logger"] == "celery.worker"
    assert "ZeroDivisionError" in lines["failed"]["exception"]
    assert "hunter2" not in json.dumps(lines)


def test_what_goes_wrong_in_a_request_carries_its_id(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in said(REQUEST, str(tmp_path), ROOFTILE_LOG_FORMAT="json")]
    (line,) = [line for line in lines if line["event"] == "unexpected error"]
    assert line["request_id"] == "from-the-proxy-1"
    assert "not thought of" in json.dumps(line)


def test_text_is_for_people() -> None:
    lines = said(ROOFTILE_LOG_FORMAT="text")
    (inside,) = [line for line in lines if "inside" in line]
    assert "job_id=7" in inside
    assert "trial_id=9" in inside
    assert "measure@box" not in inside
    assert not any("hunter2" in line for line in lines if "secret" not in line)
