"""Does docs/operations.md name every setting with its default, and only metrics and commands there are?"""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from fastapi import FastAPI
from rooftile.cli import OWN
from starlette.testclient import TestClient
from support.api import Seed

from service import periods
from service.settings import Settings
from service.store import migrate
from service.store.limits import PREFIX, Limits

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "operations.md").read_text()


def test_every_setting_is_there_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(ROOFTILE_\w+)` \| ([^|]*) \|", TEXT, re.M))
    wanted = {f"ROOFTILE_{name.upper()}" for name in Settings.model_fields}
    wanted |= {PREFIX + field.name.upper() for field in fields(Limits)} | {periods.VARIABLE}
    assert set(rows) == wanted
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert float(rows[f"ROOFTILE_{name.upper()}"]) == field.default, name
    for limit in fields(Limits):
        if limit.name != "pool":
            assert float(rows[PREFIX + limit.name.upper()]) == limit.default, limit.name
    assert float(rows[periods.VARIABLE]) == periods.DEFAULT_S


def test_a_migration_waits_as_long_as_it_says() -> None:
    told = re.search(r"waits at most ([\d.]+) s for a lock, pauses for up to ([\d.]+) s", TEXT)
    assert told is not None
    assert [float(number) for number in told.groups()] == [migrate.DDL_LOCK_S, migrate.PAUSE_S]


def test_every_metric_that_it_names_is_told(app: FastAPI, client: TestClient, seed: Seed) -> None:
    seed.device()
    seed.tuned()
    client.get("/v1/jobs")
    text = client.get("/metrics").text
    told = set(re.findall(r"^# TYPE (rooftile_\w+)", text, re.M)) - {"rooftile_info"}
    named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\brooftile_[a-z_]+", TEXT)}
    assert named - told == set()
    assert {name for name in told if not name.endswith("_created")} - named == set()


def test_the_alert_of_a_missing_kind_has_its_series_where_no_worker_of_the_kind_is_known(
    client: TestClient,
) -> None:
    rule = re.search(
        r"`sum by \(instance, kind\) \((rooftile_workers)\{kind=~\"(.*?)\",state=~\"(.*?)\"\}\) == 0`", TEXT
    )
    assert rule is not None
    name, kinds, states = rule.groups()
    told = client.get("/metrics").text
    for kind in kinds.split("|"):
        for state in states.split("|"):
            assert f'{name}{{kind="{kind}",state="{state}"}} 0.0' in told


def test_commands_exist() -> None:
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    known = {*commands["rooftile.commands"], *OWN}
    assert set(re.findall(r"`rooftile ([a-z]+)", TEXT)) <= known


def test_labels_have_bounds(client: TestClient) -> None:
    for number in range(50):
        client.get(f"/v1/jobs/{number}")
        client.get(f"/{number}")
    text = client.get("/metrics").text
    assert len(re.findall(r"^rooftile_http_requests_total", text, re.M)) < 10
