"""Does a lookup say what is served, at which level and why, and do releases obey an admin?"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.store import dispatch, jobs
from service.store.enums import JobProblemReason, JobProblemState, JobState, TrialReason
from service.store.records import DispatchIntervalRecord, NewDispatchTable

CPU = "cpu-intel-6-85-8c-x86-64-v4"
OTHER = "cpu-amd-25-1-8c-x86-64-v3"
GOOD = {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"}
ASK = {"problem": GOOD, "device": CPU}
FIELDS = {
    "release_id", "level", "reason", "schedule", "time_us", "baseline_time_us", "artifact", "pool", "launch",
    "problem_key", "device", "policy", "toolchain", "noise", "tie_set",
}  # fmt: skip


def best(client: TestClient, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/best", json={**ASK, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert set(body) >= FIELDS
    assert body["reason"]
    return body


def test_nothing_tuned_is_none_with_the_reason(client: TestClient, seed: Any) -> None:
    body = best(client)
    assert body["level"] == "none"
    assert "POST /v1/jobs" in body["reason"]
    assert body["release_id"] is None
    assert body["problem"]["schema"] == 1
    assert body["policy"] == {"cache": "cold", "launch": "eager"}


def test_nothing_released_is_told_with_the_job_that_tried(client: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    assert f"Job {job.id} is to tune it: queued" in best(client)["reason"]
    row = seed.start(job)[0]
    with seed.database.begin() as s:
        reason = JobProblemReason.RACE_FAILED
        jobs.move_problem(s, row.id, JobProblemState.FAILED, reason, "All 2 races were disturbed.")
    ended = f"Job {job.id} has no answer for it. All 2 races were disturbed."
    deadline = time.monotonic() + 20
    while (body := best(client))["reason"] != ended:  # what was said is kept until the tail reads of the move
        assert time.monotonic() < deadline, body
        time.sleep(0.05)
    assert body["level"] == "none"
    warm = best(client, policy={"cache": "warm"})
    assert "POST /v1/jobs" in warm["reason"]  # another policy was never tried


def test_a_release_is_exact_and_complete(client: TestClient, seed: Any) -> None:
    seed.device()
    _job, release = seed.tuned()
    body = best(client)
    assert body["level"] == "exact"
    assert body["release_id"] == release.id
    assert (body["time_us"], body["baseline_time_us"]) == (640.0, 900.0)
    assert body["schedule"]["family"] == "gemm_x86"
    assert body["launch"]["schema"] == 1
    assert body["toolchain"]["version"] == "12.2.0"
    artifact = client.get(f"/v1/artifacts/{body['artifact']}")
    assert hashlib.sha256(artifact.content).hexdigest() == body["artifact"]
    assert artifact.headers["ETag"] == f'"{body["artifact"]}"'
    assert "immutable" in artifact.headers["Cache-Control"]
    again = client.get(
        f"/v1/artifacts/{body['artifact']}", headers={"If-None-Match": artifact.headers["ETag"]}
    )
    assert again.status_code == 304
    assert client.get(f"/v1/artifacts/{body['pool']}").content == b"pool"


def test_a_release_of_another_toolchain_is_stale(client: TestClient, seed: Any) -> None:
    seed.device()
    seed.tuned()
    job = seed.job({"problem": {**GOOD, "m": 16}, "device": CPU})
    row = seed.start(job)[0]
    seed.propose(row, 2)
    seed.compile(2, version="13.1.0")
    seed.measure([500.0, 600.0])
    body = best(client)
    assert body["level"] == "stale"
    assert "toolchain" in body["reason"]
    assert body["artifact"]


def test_the_vendors_kernel_won_is_baseline_without_an_artifact(client: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    trial = seed.trials(row, [900.0])[0]
    race = seed.race(row, [trial], 500.0)
    seed.release(row, None, 500.0, 500.0, race)
    body = best(client)
    assert body["level"] == "baseline"
    assert (body["artifact"], body["launch"], body["schedule"]) == (None, None, None)
    assert body["time_us"] == 500.0


def test_an_empty_problem_is_the_baselines(client: TestClient) -> None:
    assert best(client, problem={**GOOD, "k": 0})["level"] == "baseline"


def test_neither_device_nor_policy_is_ignored(client: TestClient, seed: Any) -> None:
    seed.device()
    seed.tuned()
    elsewhere = best(client, device=OTHER)
    assert elsewhere["level"] == "none"
    assert CPU in elsewhere["reason"]
    warm = best(client, policy={"cache": "warm"})
    assert warm["level"] == "none"
    assert "cold-eager" in warm["reason"]
    assert best(client, problem={**GOOD, "layout": {"b": "nk"}})["level"] == "none"
    double = best(client, problem={**GOOD, "dtype": "e4m3"})
    assert double["level"] == "none"
    assert double["reason"].startswith("Nothing can be tuned for it")


def test_a_gpu_nobody_knows_is_answered_all_the_same(client: TestClient) -> None:
    assert best(client, device="gpu-2330-132sm-80g-p700")["level"] == "none"
    assert best(client, device="gpu-ffff-132sm-80g-p700")["level"] == "none"


def test_auto_is_the_only_gpu_and_several_are_a_question(client: TestClient, seed: Any) -> None:
    seed.device("gpu-2330-132sm-80g-p700", "H100", roof=False)
    assert best(client, device="auto")["device"] == "gpu-2330-132sm-80g-p700"
    seed.device("gpu-2335-132sm-141g-p700", "H200", roof=False)
    answer = client.post("/v1/best", json={"problem": GOOD})
    assert answer.status_code == 422
    assert answer.json()["field"] == "device"
    assert "gpu-2335-132sm-141g-p700" in answer.json()["detail"]


def test_withdrawing_is_told_to_lookups_and_refreshes(client: TestClient, seed: Any) -> None:
    seed.device()
    _job, release = seed.tuned()
    first = client.get(f"/v1/releases?device={CPU}").json()
    assert [row["release_id"] for row in first["releases"]] == [release.id]
    assert first["releases"][0]["state"] == "published"
    assert client.get(f"/v1/releases?after={first['after']}").json()["releases"] == []
    gone = client.post(f"/v1/releases/{release.id}:withdraw")
    assert gone.json()["state"] == "withdrawn"
    assert gone.json()["change_id"] > first["after"]
    told = client.get(f"/v1/releases?device={CPU}&after={first['after']}").json()
    assert [(row["release_id"], row["state"]) for row in told["releases"]] == [(release.id, "withdrawn")]
    assert client.get(f"/v1/releases?device={OTHER}").json()["releases"] == []
    body = best(client)
    assert body["level"] == "none"
    assert f"Release {release.id} was withdrawn" in body["reason"]


def test_pin_unpin_and_rollback(client: TestClient, seed: Any) -> None:
    seed.device()
    _job, first = seed.tuned()
    _job, second = seed.tuned({"problem": GOOD, "device": CPU, "seed": 1}, [950.0, 600.0])
    assert best(client)["release_id"] == second.id
    assert client.post(f"/v1/releases/{second.id}:pin").json()["pinned"] is True
    assert client.post(f"/v1/releases/{second.id}:unpin").json()["pinned"] is False
    refused = client.post(f"/v1/releases/{first.id}:pin")
    assert refused.status_code == 409
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert client.post(f"/v1/releases/{second.id}:rollback").status_code == 200
    assert best(client)["release_id"] == first.id
    assert client.post(f"/v1/releases/{first.id}:rollback").status_code == 409
    assert client.post("/v1/releases/99:pin").status_code == 404


def test_a_problem_and_its_layers_table(client: TestClient, seed: Any) -> None:
    seed.device()
    body = {"problem": {k: v for k, v in GOOD.items() if k != "m"}, "sweep": {"m": [16, 1]}, "device": CPU}
    job = seed.job(body)
    rows = seed.start(job)
    ids = seed.trials(rows[0], [600.0, 700.0])
    seed.release(rows[0], ids[0], 600.0, 900.0)
    shown = client.get(f"/v1/problems/{rows[0].problem_key}").json()
    assert shown["title"] == rows[0].title
    assert shown["flops"] == 2.0 * rows[0].problem["m"] * 4096 * 4096
    assert [r["device"] for r in shown["releases"]] == [CPU]
    table = client.get(f"/v1/layers/{shown['layer_key']}/table?device={CPU}").json()
    assert table["open"] == ["m", "batch"]
    assert [row["sizes"]["m"] for row in table["rows"]] == [rows[0].problem["m"]]
    for path in (f"/v1/problems/{'0' * 64}", "/v1/problems/x", f"/v1/layers/{'0' * 64}/table"):
        assert client.get(path).status_code == 404


def test_changes_a_table_and_a_problems_jobs_come_in_pages(client: TestClient, seed: Any) -> None:
    seed.device()
    sizes = [16, 1, 256, 2, 3]
    layer = {k: v for k, v in GOOD.items() if k != "m"}
    job = seed.job({"problem": layer, "sweep": {"m": sizes}, "device": CPU})
    with seed.database.begin() as s:
        jobs.move(s, job.id, JobState.RUNNING)
        rows = jobs.problems(s, job.id)
    for row in rows:
        with seed.database.begin() as s:
            jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
        seed.release(row, seed.trials(row, [600.0])[0], 600.0, 900.0)
    for _ in range(4):
        seed.job({"problem": {**layer, "m": sizes[0]}, "device": CPU, "force": True})
    shown = client.get(f"/v1/problems/{rows[0].problem_key}").json()
    assert shown["next_page_token"] is None

    def walk(path: str, name: str, limit: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        token = ""
        while token is not None:
            page = client.get(path, params={"limit": limit, "page_token": token}).json()
            assert 1 <= len(page[name]) <= limit
            found, token = found + page[name], page["next_page_token"]
        return found

    table = f"/v1/layers/{shown['layer_key']}/table"
    whole = client.get(table).json()
    assert [row["sizes"]["m"] for row in whole["rows"]] == sorted(sizes)
    assert whole["next_page_token"] is None
    problem = f"/v1/problems/{rows[0].problem_key}"
    assert len({one["job_id"] for one in shown["jobs"]}) == 5
    for limit in (1, 2, 5, 200):
        assert walk(table, "rows", limit) == whole["rows"]
        assert walk(problem, "jobs", limit) == shown["jobs"]
    # a page of one list is none of another
    for path, other in ((table, problem), (problem, table)):
        token = client.get(path, params={"limit": 1}).json()["next_page_token"]
        refused = client.get(other, params={"page_token": token})
        assert (refused.status_code, refused.json()["field"]) == (422, "page_token")
    everything = client.get("/v1/releases").json()
    assert (len(everything["releases"]), everything["more"]) == (5, False)
    found, after, more = [], 0, True
    while more:
        page = client.get("/v1/releases", params={"limit": 2, "after": after}).json()
        found, after, more = found + page["releases"], page["after"], page["more"]
        assert len(found) <= 5
    assert (found, after) == (everything["releases"], everything["after"])
    exactly = client.get("/v1/releases", params={"limit": 5}).json()
    assert exactly["more"] is False
    assert client.get("/v1/releases?limit=201").status_code == 422


def test_bytes_that_are_not_kept_are_said_to_be(client: TestClient, seed: Any) -> None:
    missing = client.get(f"/v1/artifacts/{'0' * 64}")
    assert missing.status_code == 404
    assert missing.json()["field"] == "sha256"
    assert client.get("/v1/artifacts/%2e%2e%2fetc").status_code == 404


def test_misses_become_ranked_demand(client: TestClient, seed: Any) -> None:
    misses = [
        {"problem": GOOD, "device": CPU, "count": 2},
        {"problem": {**GOOD, "m": 1}, "device": CPU, "level": "bucket", "count": 5},
    ]
    assert client.post("/v1/demand", json={"misses": misses}).json() == {"accepted": 2}
    assert client.post("/v1/demand", json={"misses": misses[:1]}).status_code == 202
    rows = client.get("/v1/demand").json()["demand"]
    assert [(row["problem"]["m"], row["count"]) for row in rows] == [(1, 5), (8, 4)]
    assert client.get(f"/v1/demand?device={OTHER}").json() == {"demand": [], "next_page_token": None}
    for wrong, field in (
        ({"misses": []}, "misses"),
        ({"misses": [{"problem": GOOD, "device": "auto"}]}, "misses[0].device"),
        ({"misses": [{"problem": GOOD, "device": CPU, "count": 0}]}, "misses[0].count"),
        ({"misses": [{"problem": GOOD, "device": CPU, "level": "near"}]}, "misses[0].level"),
    ):
        answer = client.post("/v1/demand", json=wrong)
        assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_spaces_say_what_may_be_tuned_and_why_not(client: TestClient, seed: Any) -> None:
    space = client.get("/v1/spaces?op=gemm&arch=x86-64-v4&dtype=f32&m=8&n=4096&k=4096").json()
    assert space["supported"] is True
    family = next(f for f in space["families"] if f["family"] == "gemm_x86")
    assert set(family["groups"]) == {"tile", "movement", "layout", "roles", "order"}
    assert all(p["choices"] for group in family["groups"].values() for p in group)
    assert family["default"]["family"] == "gemm_x86"
    refused = client.get("/v1/spaces?op=gemm&arch=sm_90a&dtype=e4m3").json()
    assert refused["supported"] is False
    assert refused["why_not"][0]["message"]
    assert refused["families"][0]["groups"] == {}
    attention = client.get(f"/v1/spaces?op=attention&device={CPU}&dtype=f16").json()
    assert (attention["supported"], attention["device"]) == (False, CPU)


def test_archs_and_devices(client: TestClient, seed: Any) -> None:
    seed.device()
    archs = {arch["name"]: arch for arch in client.get("/v1/archs").json()["archs"]}
    assert archs["x86-64-v4"]["families"] == ["gemm_x86"]
    assert archs["x86-64-v4"]["devices"] == [CPU]
    assert "gemm_sm80" in archs["sm_90a"]["families"]
    assert archs["sm_100a"]["families"] == []
    assert "gemm_sm100" in archs["sm_100a"]["note"]
    device = client.get("/v1/devices").json()["devices"][0]
    assert (device["key"], device["connected"]) == (CPU, True)
    assert device["roof"] == {"gflops": 1250.0, "read_gbps": 180.0}


@pytest.mark.parametrize("reason", list(TrialReason)[:3])
def test_a_failed_trial_is_never_served(client: TestClient, seed: Any, reason: TrialReason) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    seed.trials(row, [reason])
    assert best(client)["level"] == "none"


def test_a_layers_table_has_the_intervals_of_its_newest_sweep(client: TestClient, seed: Any) -> None:
    seed.device()
    layer = {k: v for k, v in GOOD.items() if k != "m"}
    job = seed.job({"problem": layer, "sweep": {"m": [1, 64]}, "device": CPU})
    with seed.database.begin() as s:
        jobs.move(s, job.id, JobState.RUNNING)
        rows = jobs.problems(s, job.id)
    made = []
    for row in rows:
        with seed.database.begin() as s:
            jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
        made.append(seed.release(row, seed.trials(row, [600.0])[0], 600.0, 900.0))
    path = f"/v1/layers/{rows[0].layer_key}/table"
    assert client.get(path).json()["dispatch"] == []
    pieces = [
        DispatchIntervalRecord(1, 20, 1, made[0].id, made[0].schedule_key, 0.01, 0.02),
        DispatchIntervalRecord(21, 64, 64, made[1].id, made[1].schedule_key, None, None),
    ]
    held = [{"size": 20, "choice": "x", "best": "y", "loss": 0.03, "raced": True, "measured": 2}]
    for job_id, told in ((job.id + 1, []), (job.id, held)):
        with seed.database.begin() as s:
            new = NewDispatchTable(
                rows[0].layer_key, CPU, "cold-eager", job_id, 0, "m", 1, 64, {"batch": 1}, [], told, pieces
            )
            dispatch.create(s, new)
    (shown,) = client.get(path).json()["dispatch"]
    assert (shown["axis"], shown["low"], shown["high"], shown["fixed"]) == ("m", 1, 64, {"batch": 1})
    assert shown["held_out"] == [{"size": 20, "loss_percent": 3.0, "raced": True}]
    assert (shown["mean_loss_percent"], shown["worst_loss_percent"]) == (3.0, 3.0)
    first, second = shown["intervals"]
    assert (first["low"], first["high"], first["level"]) == (1, 20, "exact")
    assert (first["release_id"], first["artifact"]) == (made[0].id, made[0].artifact_sha256)
    assert (first["estimated_worst_loss_percent"], second["estimated_worst_loss_percent"]) == (2.0, None)
    # what was withdrawn is not to be used, and the table says so
    client.post(f"/v1/releases/{made[1].id}:withdraw")
    second = client.get(path).json()["dispatch"][0]["intervals"][1]
    assert (second["level"], second["artifact"], second["launch"]) == ("none", None, None)


def test_a_devices_portfolio_with_what_it_loses(client: TestClient, seed: Any) -> None:
    seed.device()
    layer = {k: v for k, v in GOOD.items() if k != "m"}
    job = seed.job({"problem": layer, "sweep": {"m": [1, 64]}, "device": CPU})
    with seed.database.begin() as s:
        jobs.move(s, job.id, JobState.RUNNING)
        rows = jobs.problems(s, job.id)
    for row, times in zip(rows, ([100.0, 103.0], [150.0, 120.0]), strict=True):
        with seed.database.begin() as s:
            jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
        seed.trials(row, times)
    told = client.get("/v1/portfolios", params={"device": CPU}).json()
    (one,) = told["portfolios"]
    assert (one["family"], one["problem_count"], one["covered"], one["uncovered"]) == ("gemm_x86", 2, 2, [])
    (member,) = one["members"]
    assert sorted(member["problems"]) == sorted(row.problem_key for row in rows)
    assert member["schedule_text"]
    assert one["worst_loss_percent"] == pytest.approx(3.0)
    strict = client.get("/v1/portfolios", params={"device": CPU, "loss_percent": 1}).json()
    assert len(strict["portfolios"][0]["members"]) == 2
    assert client.get("/v1/portfolios", params={"device": OTHER}).json()["portfolios"] == []
    for query, field in (
        ("device=mine", "device"),
        ("family=gemm", "family"),
        ("loss_percent=-1", "loss_percent"),
    ):
        refused = client.get(f"/v1/portfolios?{query}")
        assert (refused.status_code, refused.json()["field"]) == (422, field)
