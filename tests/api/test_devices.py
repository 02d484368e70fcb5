"""Who reports for a device, and who takes one out of service and puts it back?"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.api import CPU, gemm

from service.store import workers
from service.store.enums import Scope, WorkerKind, WorkerState

GPU = "gpu-10de-2330-132sm-80g-p700"


def listed(client: TestClient) -> dict[str, dict[str, Any]]:
    answer = client.get("/v1/devices")
    assert answer.status_code == 200
    return {one["key"]: one for one in answer.json()["devices"]}


def test_each_worker_of_a_device_is_told_with_what_it_announced(client: TestClient, seed: Any) -> None:
    seed.device()
    seed.device(GPU, alive=False)
    told = {"uuid": "GPU-1", "driver": "580.65", "memory_bytes": 80 * 2**30, "power_limit_w": 700.0}
    with seed.database.begin() as s:
        for number, state in ((1, WorkerState.IDLE), (2, WorkerState.WAITING)):
            name = f"measure@box/{number}"
            workers.heartbeat(s, name, WorkerKind.MEASURE, "box", number, GPU, state, told)
    found = listed(client)
    assert [one["host"] for one in found[CPU]["workers"]] == ["host"]
    ours = found[GPU]["workers"]
    assert [(one["id"], one["state"]) for one in ours] == [
        ("measure@box/1", "idle"),
        ("measure@box/2", "waiting"),
    ]
    assert ours[0]["data"] == told
    assert ours[0]["heartbeat_at"] >= ours[0]["started_at"]


def test_an_admin_takes_a_device_out_of_service_and_puts_it_back(client: TestClient, seed: Any) -> None:
    seed.device()
    answer = client.post(f"/v1/devices/{CPU}:suspend", json={"reason": " its fan is being replaced "})
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["state"], shown["reason"]) == ("out_of_service", "its fan is being replaced")
    assert not shown["connected"]
    assert listed(client)[CPU] == shown
    job = client.post("/v1/jobs", json={"problem": gemm(), "device": CPU})
    assert job.json()["state"] == "waiting"
    back = client.post(f"/v1/devices/{CPU}:resume").json()
    assert (back["state"], back["reason"], back["connected"]) == ("available", "", True)


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": 3}, {"reason": "x" * 501}, {"why": "x"}])
def test_a_reason_is_needed(client: TestClient, seed: Any, body: dict[str, Any]) -> None:
    seed.device()
    answer = client.post(f"/v1/devices/{CPU}:suspend", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] in ("reason", "why")
    assert listed(client)[CPU]["state"] == "available"


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_what_is_not_there_and_who_may_not(client: TestClient, as_token: Any, seed: Any, verb: str) -> None:
    body = {"reason": "x"} if verb == "suspend" else None
    for key in ("gpu-nothing", "%00", "x" * 300):
        assert client.post(f"/v1/devices/{key}:{verb}", json=body).status_code == 404
    seed.device()
    user = as_token(seed.token(Scope.SUBMIT))
    assert user.post(f"/v1/devices/{CPU}:{verb}", json=body).status_code == 403
