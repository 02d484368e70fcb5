"""Do the job endpoints do what the interface promises, end to end over a real store?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from service.store.enums import JobState, Scope, TrialReason
from service.store.models import Token

BODY = {
    "problem": {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"},
    "target": {"device": "cpu-intel-6-85-8c-x86-64-v4"},
    "budget": {"trials": 60, "seconds": 60},
}


def problem(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert set(document) == {"type", "title", "status", "detail", "field", "value", "allowed", "nearest"}
    assert document["status"] == status
    return document


def test_a_job_is_accepted_with_its_address(client: TestClient, seed: Any) -> None:
    seed.device()
    answer = client.post("/v1/jobs", json=BODY)
    assert answer.status_code == 202
    created = answer.json()
    assert answer.headers["Location"] == created["url"] == f"/v1/jobs/{created['id']}"
    assert created["state"] == "queued"
    assert created["created"] is True
    job = client.get(created["url"]).json()
    assert job["titles"] == ["gemm 8x4096x4096 f32 kn"]
    assert job["policy"] == {"cache": "cold", "launch": "eager"}
    assert job["budget"] == {"trials": 60, "seconds": 60.0, "device_seconds": None}
    assert job["counts"] == {}
    assert job["best"] is None
    assert job["problems"][0]["problem"]["schema"] == 1


def test_a_device_that_is_not_connected_leaves_the_job_waiting(client: TestClient) -> None:
    created = client.post("/v1/jobs", json=BODY).json()
    assert (created["state"], created["reason"]) == ("waiting", "no_device")


def test_a_size_of_zero_is_done_at_once(client: TestClient, seed: Any) -> None:
    seed.device()
    body = {**BODY, "problem": {**BODY["problem"], "m": 0}}  # type: ignore[dict-item]
    created = client.post("/v1/jobs", json=body).json()
    assert (created["state"], created["reason"]) == ("done", "empty_problem")
    assert client.get(f"/v1/jobs/{created['id']}/trials").json() == {"trials": [], "next_page_token": None}


def test_an_idempotency_key_replays_and_refuses_another_body(
    client: TestClient, seed: Any, as_token: Callable[[str], TestClient]
) -> None:
    seed.device()
    headers = {"Idempotency-Key": "one"}
    body = {**BODY, "force": True}
    first = client.post("/v1/jobs", json=body, headers=headers)
    again = client.post("/v1/jobs", json=body, headers=headers)
    assert again.status_code == 202
    assert again.json() == first.json()
    assert again.headers["Location"] == first.headers["Location"]
    assert problem(client.post("/v1/jobs", json=BODY, headers=headers), 422)["field"] == "Idempotency-Key"
    other = as_token(seed.token(Scope.SUBMIT)).post("/v1/jobs", json=body, headers=headers)
    assert other.json()["id"] != first.json()["id"]
    long = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "x" * 300})
    assert problem(long, 422)["field"] == "Idempotency-Key"


def test_a_refused_request_leaves_its_key_free(client: TestClient, seed: Any) -> None:
    seed.device()
    headers = {"Idempotency-Key": "two"}
    wrong = {**BODY, "problem": {"op": "gemm"}}
    assert problem(client.post("/v1/jobs", json=wrong, headers=headers), 422)["field"] == "problem.m"
    assert client.post("/v1/jobs", json=BODY, headers=headers).status_code == 202


def test_equal_requests_at_once_are_one_job(client: TestClient, seed: Any) -> None:
    seed.device()
    answers: list[Any] = []

    def post() -> None:
        answers.append(client.post("/v1/jobs", json=BODY))

    threads = [threading.Thread(target=post) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [a.status_code for a in answers] == [202] * 50
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum(a.json()["created"] for a in answers) == 1


def test_jobs_come_in_pages_newest_first(client: TestClient, seed: Any) -> None:
    seed.device()
    ids = [seed.job({**BODY, "seed": n}).id for n in range(7)]
    seen: list[int] = []
    token: str | None = None
    while True:
        page = client.get("/v1/jobs", params={"limit": 3, **({"page_token": token} if token else {})}).json()
        seen += [job["id"] for job in page["jobs"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert seen == ids[::-1]


def test_jobs_are_filtered_by_state_and_op(client: TestClient, seed: Any) -> None:
    seed.device()
    jobs = [seed.job({**BODY, "seed": n}) for n in range(4)]
    seed.start(jobs[2])
    assert [j["id"] for j in client.get("/v1/jobs?state=running").json()["jobs"]] == [jobs[2].id]
    assert client.get("/v1/jobs?op=attention").json() == {"jobs": [], "next_page_token": None}
    assert len(client.get("/v1/jobs?op=gemm&limit=2").json()["jobs"]) == 2
    # However many others lie before it, the first page has the one that is asked for, and there is no next.
    empty = {"op": "attention", "batch": 1, "heads_q": 8, "heads_kv": 8, "seq_q": 0, "seq_kv": 9}
    rare = seed.job({"problem": {**empty, "head_dim": 64, "dtype": "f32"}})
    for n in range(4, 8):
        seed.job({**BODY, "seed": n})
    page = client.get("/v1/jobs?op=attention&limit=1").json()
    assert [j["id"] for j in page["jobs"]] == [rare.id]
    assert page["next_page_token"] is None
    assert problem(client.get("/v1/jobs?state=runing"), 422)["nearest"] == "running"
    assert problem(client.get("/v1/jobs?limit=0"), 422)["field"] == "limit"
    assert problem(client.get("/v1/jobs?limit=x"), 422)["field"] == "limit"
    assert problem(client.get("/v1/jobs?page_token=nonsense"), 422)["field"] == "page_token"


def test_a_job_shows_its_outcomes_and_its_best(client: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job(BODY)
    row = seed.start(job)[0]
    ids = seed.trials(row, [900.0, 600.0, TrialReason.WRONG_RESULT, 2500.0])
    shown = client.get(f"/v1/jobs/{job.id}").json()
    assert shown["counts"] == {"measured": 2, "culled": 1, "failed": 1}
    assert {"state": "failed", "reason": "wrong_result", "count": 1} in shown["outcomes"]
    assert shown["best"]["trial_id"] == ids[1]
    assert shown["best"]["time_us"] == 600.0
    assert shown["best"]["baseline_time_us"] is None
    seed.race(row, [ids[1]], 900.0)
    best = client.get(f"/v1/jobs/{job.id}").json()["best"]
    assert (best["baseline_time_us"], best["speedup"]) == (900.0, 1.5)


def test_a_job_is_paused_resumed_and_cancelled(client: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job(BODY)
    seed.start(job)
    assert client.post(f"/v1/jobs/{job.id}:pause").json()["state"] == "paused"
    assert client.post(f"/v1/jobs/{job.id}:pause").status_code == 200
    assert client.post(f"/v1/jobs/{job.id}:resume").json()["state"] in ("queued", "running")
    assert client.post(f"/v1/jobs/{job.id}:cancel").json()["state"] == "cancelled"
    assert problem(client.post(f"/v1/jobs/{job.id}:resume"), 409)["value"] == "cancelled"
    assert problem(client.post(f"/v1/jobs/{job.id}:pause"), 409)["field"] == "state"
    assert problem(client.post("/v1/jobs/99:cancel"), 404)["field"] == "id"


def test_a_submit_token_steers_its_own_jobs_only(
    client: TestClient, seed: Any, as_token: Callable[[str], TestClient]
) -> None:
    seed.device()
    mine, reader = as_token(seed.token(Scope.SUBMIT)), as_token(seed.token(Scope.READ))
    own = mine.post("/v1/jobs", json=BODY).json()["id"]
    other = client.post("/v1/jobs", json={**BODY, "seed": 1}).json()["id"]
    assert mine.post(f"/v1/jobs/{own}:pause").status_code == 200
    assert problem(mine.post(f"/v1/jobs/{other}:pause"), 403)["allowed"] == ["admin"]
    assert client.post(f"/v1/jobs/{own}:cancel").status_code == 200
    refused = reader.post("/v1/jobs", json=BODY)
    problem(refused, 403)
    assert 'scope="submit"' in refused.headers["WWW-Authenticate"]
    assert reader.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
def test_each_who_asked_for_the_same_cancels_for_himself(
    client: TestClient, seed: Any, as_token: Callable[[str], TestClient]
) -> None:
    seed.device()
    ann, bob, cem = (as_token(seed.token(Scope.SUBMIT)) for _ in range(3))
    url = ann.post("/v1/jobs", json={**BODY, "priority": -5}).json()["url"]
    for one in (bob, cem):
        joined = one.post("/v1/jobs", json=BODY).json()
        assert (joined["url"], joined["created"]) == (url, False)
    assert ann.get(url).json()["priority"] == 0
    # to stop it for the others is more than leaving it
    assert problem(ann.post(f"{url}:pause"), 403)["allowed"] == ["admin"]
    assert ann.post(f"{url}:cancel").json()["state"] == "queued"
    # an answer that was lost, asked for again
    assert ann.post(f"{url}:cancel").json()["state"] == "queued"
    assert problem(ann.post(f"{url}:pause"), 403)["allowed"] == ["admin"]
    assert bob.post(f"{url}:cancel").json()["state"] == "queued"
    assert cem.post(f"{url}:pause").json()["state"] == "paused"
    assert bob.post("/v1/jobs", json=BODY).json()["url"] == url
    page = url.removeprefix("/v1")
    shown = ["Cancel job" in one.get(page).text for one in (ann, bob, cem)]
    assert shown == [False, True, True]
    assert cem.post(f"{page}/cancel", follow_redirects=False).status_code == 303
    assert ["Cancel job" in one.get(page).text for one in (bob, cem)] == [True, False]
    assert bob.post(f"{url}:resume").status_code == 200
    assert client.post(f"{url}:pause").status_code == 200
    assert client.post(f"{url}:cancel").json()["state"] == "cancelled"
    again = ann.post("/v1/jobs", json=BODY).json()
    assert again["url"] != url
    assert ann.post(f"{again['url']}:cancel").json()["state"] == "cancelled"
    assert ann.post(f"{again['url']}:cancel").json()["state"] == "cancelled"


def test_only_an_admin_goes_before_everybody(
    client: TestClient, seed: Any, as_token: Callable[[str], TestClient]
) -> None:
    seed.device()
    mine = as_token(seed.token(Scope.SUBMIT))
    for priority in (1, 100):
        refused = problem(mine.post("/v1/jobs", json={**BODY, "priority": priority}), 403)
        assert (refused["field"], refused["value"]) == ("priority", priority)
        assert refused["allowed"] == "a whole number from -100 to 0"
        assert "admin" in refused["detail"]
    assert client.get("/v1/jobs").json()["jobs"] == []
    for number, (who, priority) in enumerate(((mine, 0), (mine, -100), (client, 100))):
        made = who.post("/v1/jobs", json={**BODY, "seed": number, "priority": priority})
        assert made.status_code == 202, made.text
        assert client.get(made.json()["url"]).json()["priority"] == priority
    # What is no priority at all is told before who may have which.
    assert problem(mine.post("/v1/jobs", json={**BODY, "priority": 101}), 422)["field"] == "priority"


def test_an_answer_is_replayed_to_a_token_that_may_no_longer_ask_for_it(
    seed: Any, as_token: Callable[[str], TestClient]
) -> None:
    seed.device()
    mine = as_token(seed.token(Scope.ADMIN))
    body, headers = {**BODY, "priority": 7}, {"Idempotency-Key": "urgent"}
    first = mine.post("/v1/jobs", json=body, headers=headers).json()
    with seed.database.begin() as s:
        s.execute(update(Token).where(Token.name == "a test").values(scopes=["submit"]))
    assert mine.post("/v1/jobs", json=body, headers=headers).json() == first
    refused = mine.post("/v1/jobs", json=body, headers={"Idempotency-Key": "again"})
    assert problem(refused, 403)["field"] == "priority"
    # Nor is the key of the refused one taken.
    usual = mine.post("/v1/jobs", json={**body, "priority": 0}, headers={"Idempotency-Key": "again"})
    assert usual.status_code == 202


def test_a_token_has_only_so_many_open_jobs(
    client: TestClient, seed: Any, as_token: Callable[[str], TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = client.app.state.rooftile  # type: ignore[attr-defined]
    monkeypatch.setattr(state, "settings", state.settings.model_copy(update={"open_jobs": 2}))
    seed.device()
    mine = as_token(seed.token(Scope.SUBMIT))
    ids = [mine.post("/v1/jobs", json={**BODY, "seed": n}).json()["id"] for n in range(2)]
    refused = mine.post("/v1/jobs", json={**BODY, "seed": 9})
    assert problem(refused, 429)["allowed"] == {"open_jobs": 2}
    assert [job["id"] for job in client.get("/v1/jobs").json()["jobs"]] == ids[::-1]
    assert mine.post("/v1/jobs", json={**BODY, "seed": 1}).json()["id"] == ids[1]
    # to join another's is to have one more
    theirs = client.post("/v1/jobs", json={**BODY, "seed": 10}).json()["id"]
    problem(mine.post("/v1/jobs", json={**BODY, "seed": 10}), 429)
    mine.post(f"/v1/jobs/{theirs}:cancel")
    assert client.get(f"/v1/jobs/{theirs}").json()["state"] == "queued"
    mine.post(f"/v1/jobs/{ids[0]}:cancel")
    assert mine.post("/v1/jobs", json={**BODY, "seed": 9}).status_code == 202
    for n in range(3):
        assert client.post("/v1/jobs", json={**BODY, "seed": 20 + n}).status_code == 202


@pytest.mark.parametrize("order", ["oldest", "newest", "fastest"])
def test_trials_come_in_pages_in_each_order(client: TestClient, seed: Any, order: str) -> None:
    seed.device()
    job = seed.job(BODY)
    row = seed.start(job)[0]
    times = [900.0, 600.0, 700.0, 650.0, 600.0]
    ids = seed.trials(row, times)
    wanted = {
        "oldest": ids,
        "newest": ids[::-1],
        "fastest": [n for _, n in sorted(zip(times, ids, strict=True))],
    }
    seen: list[int] = []
    token = ""
    for _ in range(10):
        url = f"/v1/jobs/{job.id}/trials?order={order}&limit=2" + (f"&page_token={token}" if token else "")
        page = client.get(url).json()
        seen += [trial["id"] for trial in page["trials"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert seen == wanted[order]
    other = "newest" if order != "newest" else "oldest"
    first = client.get(f"/v1/jobs/{job.id}/trials?order={order}&limit=2").json()["next_page_token"]
    stolen = client.get(f"/v1/jobs/{job.id}/trials?order={other}&limit=2&page_token={first}")
    assert problem(stolen, 422)["field"] == "page_token"


def test_a_trial_shows_all_its_evidence(client: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job(BODY)
    row = seed.start(job)[0]
    good, bad = seed.trials(row, [600.0, TrialReason.WRONG_RESULT])
    shown = client.get(f"/v1/trials/{good}").json()
    assert shown["time_us"] == 600.0
    assert shown["schedule_text"].startswith("gemm_x86  tile ")
    assert "movement" in shown["schedule_long"]
    assert shown["verdicts"][0]["passed"] is True
    assert len(shown["measurements"][0]["samples_us"]) == 21
    assert shown["measurements"][0]["environment"]["governor"] == "performance"
    assert shown["toolchain"]["compiler"] == "gcc"
    assert len(shown["artifact"]) == 64
    assert shown["repeat_request"]["params"]["mr"] == shown["schedule"]["tile"]["mr"]
    assert shown["repeat"].startswith("rooftile tune --spec")
    wrong = client.get(f"/v1/trials/{bad}").json()
    assert (wrong["state"], wrong["reason"]) == ("failed", "wrong_result")
    assert wrong["evidence"]["first_wrong"] == [3, 17]
    assert wrong["verdicts"][0]["passed"] is False
    assert client.get(f"/v1/jobs/{job.id}/trials?state=failed").json()["trials"][0]["id"] == bad


def test_what_is_not_there_is_404_by_name(client: TestClient) -> None:
    for path in ("/v1/jobs/7", "/v1/jobs/x", "/v1/jobs/7/trials", "/v1/jobs/7/events", "/v1/trials/7"):
        assert problem(client.get(path), 404)["field"] == "id", path
    for path in (f"/v1/jobs/{2**70}", "/v1/jobs/-1", "/v1/jobs/%00", "/v1/jobs/1%2F2", "/v1/nothing"):
        problem(client.get(path), 404)
    assert problem(client.delete("/v1/jobs/7"), 405)["allowed"] == ["GET"]
    assert problem(client.get("/v1/jobs/7:cancel"), 405)["allowed"] == ["POST"]


def test_a_list_read_twice_is_304(client: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job(BODY)
    for path in ("/v1/jobs", f"/v1/jobs/{job.id}", "/v1/devices", "/v1/archs"):
        etag = client.get(path).headers["ETag"]
        again = client.get(path, headers={"If-None-Match": etag})
        if path != "/v1/devices":  # last seen moves
            assert (again.status_code, again.content) == (304, b""), path
    before = client.get(f"/v1/jobs/{job.id}").headers["ETag"]
    seed.start(job)
    assert client.get(f"/v1/jobs/{job.id}", headers={"If-None-Match": before}).status_code == 200
    assert JobState.RUNNING.doc


def test_the_request_that_repeats_a_trial_is_a_job_with_that_schedule(client: TestClient, seed: Any) -> None:
    from rooftile.problem import Gemm

    from search_space.device import Device
    from search_space.registry import get_family
    from service.store import trials
    from service.store.enums import ProposalSource
    from service.store.records import NewTrial

    key = seed.device()
    family = get_family("gemm_x86")
    default = family.default(Gemm(m=8, n=4096, k=4096, dtype="f32"), Device.for_key(key))
    row = seed.start(seed.job(BODY))[0]
    with seed.database.begin() as s:
        new = NewTrial(default.to_json(), default.key, family.name, ProposalSource.DEFAULT)
        trial = trials.propose(s, row.id, [new])[0]
    request = client.get(f"/v1/trials/{trial.id}").json()["repeat_request"]
    answer = client.post("/v1/jobs", json=request)
    assert answer.status_code == 202, answer.text
    job = client.get(answer.json()["url"]).json()
    assert job["options"]["params"] == {name: [value] for name, value in default.values().items()}
    assert job["budget"]["trials"] == 1
    assert job["problems"][0]["problem_key"] == row.problem_key
