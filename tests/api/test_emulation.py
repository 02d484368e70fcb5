"""Is the emulator's word on a trial shown the same way by the API, the command line and the dashboard?"""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from rooftile.cli_trial import lines
from rooftile.problem import parse_problem
from starlette.testclient import TestClient
from support.api import gemm
from support.hands import GPU_DEVICE
from support.store import compiled

from search_space.device import Device
from search_space.registry import get_family
from service.api import emulation_text
from service.cli import tune_result
from service.jobs.submit import submit
from service.store import devices, emulation_claims, emulations, jobs, logins, releases, trials
from service.store.enums import (
    JobProblemState,
    JobState,
    ProposalSource,
    Scope,
    TrialReason,
    VerdictKind,
    Winner,
)
from service.store.records import (
    DeviceRecord,
    Emulated,
    NewRelease,
    NewTrial,
    Undecided,
    VerdictRecord,
)

COUNTERS: dict[str, Any] = {
    "m": 125, "n": 125, "k": 543, "order": "late",
    "roles": {
        "producer": {"bytes": {"global_to_shared": 271500}, "waits": {"copies": 36}},
        "consumer": {
            "bank_conflicts": {"load": 500, "store": 0},
            "global_requests": {"store": 100},
            "global_sectors": {"store": 450},
            "mma": {"m16n8k16.f16": 4608},
            "instructions": {"matrix": 4608, "integer": 14796},
        },
    },
}  # fmt: skip
FAULT = {
    "kind": "race", "message": "b, stage 1, is read at line 90 while the copy of line 71 writes it.",
    "file": "/rooftile/kernels/cuda/gemm/gemm_sm80.cu", "line": 90, "cta": [0, 1, 0], "warp": 3,
    "buffer": "b", "stage": 1, "other_line": 71, "count": 4,
}  # fmt: skip
CHECK = {"m": 125, "n": 125, "k": 543, "batch": 1, "alpha": -0.75, "beta": 0.5, "order": "late"}


def right() -> Emulated:
    verdict = VerdictRecord(VerdictKind.EMULATED, True, (7,), ({**CHECK, "passed": True},), 1e-3, 4e-3)
    return Emulated(verdict, COUNTERS, 9.5)


def wrong() -> Emulated:
    verdict = VerdictRecord(VerdictKind.EMULATED, False, (7,), ({**CHECK, "passed": False},), None, None)
    evidence = {"message": FAULT["message"], "faults": [FAULT]}
    return Emulated(verdict, COUNTERS, 2.5, TrialReason.RACE, evidence)


def emulate(seed: Any, *outcomes: Emulated | Undecided, device: str | None = None) -> list[int]:
    """Two trials of one structure for sm_80, of which the first is run; their ids."""
    family: Any = get_family("gemm_sm80")
    model = Device.for_arch("sm_80")
    with seed.database.begin() as s:
        body = {"problem": gemm(256, 256, 256, dtype="f16"), "force": True}
        target = {"device": device} if device else {"arch": "sm_80"}
        job, _ = submit(s, {**body, "target": target})
        (row,) = jobs.problems(s, job.id)
        jobs.move(s, job.id, JobState.RUNNING)
        jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
        problem = parse_problem(dict(row.problem))
        chosen = family.candidates(problem, model)[:2]
        new = [
            NewTrial(one.to_json(), one.key, family.name, ProposalSource.START, 10.0 + index)
            for index, one in enumerate(chosen)
        ]
        made = trials.propose(s, row.id, new)
        for claim in trials.claim_compile(s, "compiler", 9, 60, ["sm_80"]):
            plan = family.plan(problem, model, chosen[0]).to_json()
            built = compiled(
                f"cubin {claim.trial_id}".encode(), plan=plan, structure={"layout": "tn"}, ptx=b"ptx"
            )
            assert trials.finish_compile(s, claim.claim_id, built)
        for outcome in outcomes:
            run = emulation_claims.claim(s, "emulator", 60, ["sm_80"])
            assert run is not None
            assert emulation_claims.finish(s, run.claim_id, outcome)
    return [one.id for one in made]


@pytest.fixture
def browser(anonymous: TestClient, seed: Any) -> TestClient:
    with seed.database.begin() as s:
        code = logins.create_code(s, {Scope.ADMIN})
    assert anonymous.get(f"/login?code={code}").status_code == 303
    anonymous.headers["Accept"] = "text/html"
    return anonymous


def everywhere(client: TestClient, browser: TestClient, trial_id: int) -> tuple[dict[str, Any], list[str]]:
    """The JSON of a trial, and what a person reads on the page and on the command line."""
    data = client.get(f"/v1/trials/{trial_id}").json()
    page = browser.get(f"/trials/{trial_id}")
    assert page.status_code == 200
    text = html.unescape(re.sub(r"<[^>]+>", " ", page.text))
    return data, [" ".join(text.split()), " ".join("\n".join(lines(data)).split())]


def test_a_verdict_with_its_counters(client: TestClient, browser: TestClient, seed: Any) -> None:
    ran, other = emulate(seed, right())
    data, texts = everywhere(client, browser, ran)
    found = data["emulation"]
    assert (found["state"], found["own"], found["scope"]) == ("passed", True, "structure")
    assert found["counters"] == COUNTERS
    assert [one["kind"] for one in data["verdicts"]] == ["emulated"]
    for text in texts:
        for words in (
            "right in the emulator",
            "this trial's own schedule was run",
            "1 run in 9.5 s",
            "125x125x543, alpha -0.75, beta 0.5, late: right",
            "nearest to its bound: error 0.001 of 0.004 allowed",
            "role producer",
            "role consumer",
            "bank conflicts load 500, store 0",
            "sectors per request store 4.5",
            "bytes global to shared 271,500",
            "mma m16n8k16.f16 4,608",
            "instructions matrix 4,608, integer 14,796",
            "waits copies 36",
        ):
            assert words in text, (words, text)
    # The other one shows the verdict of its structure, and whose schedule was run.
    data, texts = everywhere(client, browser, other)
    assert (data["emulation"]["own"], data["emulation"]["trial_id"]) == (False, ran)
    assert data["emulation"]["schedule_text"].startswith("gemm_sm80")
    assert data["verdicts"] == []
    for text in texts:
        assert f"the verdict of its structure: trial {ran} was run" in text


def test_a_failure_names_the_place(client: TestClient, browser: TestClient, seed: Any) -> None:
    ran, other = emulate(seed, wrong())
    for trial_id in (ran, other):
        data, texts = everywhere(client, browser, trial_id)
        assert (data["state"], data["reason"]) == ("failed", "race")
        assert data["emulation"]["faults"] == [FAULT]
        assert data["evidence"]["faults"] == [FAULT]
        for text in texts:
            assert "WRONG in the emulator (race: " in text
            assert f"race at {FAULT['file']}:90, block 0 1 0, warp 3, buffer b, stage 1" in text
            assert "other line 71, 4 times" in text
            assert FAULT["message"] in text


def test_the_end_of_tune_names_an_example_of_each_failure(seed: Any) -> None:
    ran, _ = emulate(seed, wrong())
    with seed.database.read() as s:
        trial = trials.get(s, ran)
        assert trial is not None
        job = jobs.get(s, trial.job_id)
        assert job is not None
        (result,) = tune_result.collect(s, job).results
    assert result.trials == {"failed: race": 2}
    assert result.examples == {"failed: race": ran}


def test_what_was_not_decided_says_why(client: TestClient, browser: TestClient, seed: Any) -> None:
    lost = Undecided(TrialReason.NOT_EMULATED, {"message": "line 7: frobnicate.b32 is not understood"})
    ran, _ = emulate(seed, lost)
    data, texts = everywhere(client, browser, ran)
    assert (data["reason"], data["emulation"]["state"]) == ("not_emulated", "queued")  # the other one is next
    emulate(seed, lost)
    for text in texts:
        assert "frobnicate.b32" in text


def test_whoever_was_never_run_is_not_said_to_wait_or_to_have_been_run(
    client: TestClient, browser: TestClient, seed: Any
) -> None:
    ran, other = emulate(seed)
    data, texts = everywhere(client, browser, ran)
    assert data["emulation"]["unrun"] is None
    for text in texts:
        assert "waits for an emulate worker" in text
        assert "this trial's own schedule is to be run" in text
        assert "was run" not in text
    job_id = data["job_id"]
    assert client.post(f"/v1/jobs/{job_id}:cancel").status_code == 200
    why = TrialReason.JOB_ENDED.doc
    for trial_id in (ran, other):
        data, texts = everywhere(client, browser, trial_id)
        assert (data["state"], data["emulation"]["unrun"]) == ("cancelled", why)
        for text in texts:
            assert f"not emulated: {why}" in text
            for words in ("waits for", "was run", "run itself", "queued", "by its structure"):
                assert words not in text, (words, text)


def test_a_ranked_trial_whose_job_ended_before_its_run_is_not_queued(
    client: TestClient, browser: TestClient, seed: Any
) -> None:
    _, other = emulate(seed, right())
    with seed.database.begin() as s:
        emulations.want_own(s, other)  # as a finalist; the verdict of its structure is there
        found = trials.get(s, other)
        assert found is not None
        jobs.move_problem(s, found.job_problem_id, JobProblemState.DONE)
        assert emulation_text.short(emulations.of_trial(s, other), found, over=True) == (
            "not emulated: job ended"
        )
    data, texts = everywhere(client, browser, other)
    assert (data["state"], data["emulation"]["state"]) == ("ranked", "queued")
    for text in texts:
        assert f"not emulated: {TrialReason.JOB_ENDED.doc}" in text
        assert "waits for" not in text


def test_a_ranked_job_shows_its_best_without_a_time(
    client: TestClient, browser: TestClient, seed: Any
) -> None:
    ran, other = emulate(seed, right())
    job_id = client.get(f"/v1/trials/{ran}").json()["job_id"]
    best = client.get(f"/v1/jobs/{job_id}").json()["best"]
    assert (best["trial_id"], best["time_us"], best["predicted_us"]) == (ran, None, 10.0)
    assert best["emulated"] == "right, run itself"
    page = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", browser.get(f"/jobs/{job_id}").text)).split())
    assert "Best by the cost model 10.00 µs" in page
    assert "not yet timed" in page
    for query in ("order=fastest", "order=predicted", "order=predicted&state=ranked"):
        rows = re.findall(r'<tr id="trial-(\d+)"', browser.get(f"/jobs/{job_id}?{query}").text)
        assert rows == [str(ran), str(other)], query
    assert "state=ranked" in browser.get(f"/jobs/{job_id}").text
    first = client.get(f"/v1/jobs/{job_id}/trials?order=predicted&limit=1").json()
    token = first["next_page_token"]
    rest = client.get(f"/v1/jobs/{job_id}/trials?order=predicted&page_token={token}").json()
    assert [one["id"] for one in first["trials"] + rest["trials"]] == [ran, other]


def test_what_was_ranked_for_an_arch_is_found_by_its_problem(client: TestClient, seed: Any) -> None:
    ran, _ = emulate(seed, right())
    job_id = client.get(f"/v1/trials/{ran}").json()["job_id"]
    question = {"problem": gemm(256, 256, 256, dtype="f16")}
    for device in (GPU_DEVICE, "cpu-amd-25-1-2c-x86-64-v3"):
        found = client.post("/v1/best", json={**question, "device": device}).json()
        assert found["level"] == "none"
        said = f"sm_80 without a device in job {job_id}: trial {ran}, 10 us expected, not yet timed"
        assert said in found["reason"], found["reason"]
    shown = client.get(f"/v1/problems/{found['problem_key']}").json()
    (job,) = shown["jobs"]
    assert (job["job_id"], job["arch"], job["device"]) == (job_id, "sm_80", None)
    assert (job["trial_id"], job["predicted_us"]) == (ran, 10.0)


def test_an_admin_publishes_what_nobody_proved(client: TestClient, as_token: Any, seed: Any) -> None:
    with seed.database.begin() as s:
        record = Device.for_key(GPU_DEVICE)
        devices.upsert(s, DeviceRecord(GPU_DEVICE, record.name, "gpu", record.arch.name, record.to_json()))
    ran, _ = emulate(seed, device=GPU_DEVICE)
    with seed.database.begin() as s:
        trial = trials.get(s, ran)
        assert trial is not None
        new = NewRelease(
            trial.job_problem_id, {}, "cold-graph", Winner.TRIAL, ran, None, 9.0, None, unproven=True
        )
        made = releases.create(s, new)
    path = f"/v1/releases/{made.id}:publish"
    assert as_token(seed.token(Scope.READ, Scope.SUBMIT)).post(path).status_code == 403
    shown = client.post(path).json()
    assert (shown["state"], shown["unproven"]) == ("published", True)
    assert client.post("/v1/releases/99:publish").status_code == 404
    # Whoever is given it is told.
    wanted = {"problem": gemm(256, 256, 256, dtype="f16"), "device": GPU_DEVICE}
    answer = client.post("/v1/best", json=wanted).json()
    assert (answer["release_id"], answer["unproven"]) == (made.id, True)
    assert "no emulated verdict speaks for it" in answer["reason"]
    assert "unraced: the vendor's kernel could not be raced" in answer["reason"]
    client.post(f"/v1/releases/{made.id}:withdraw")
    assert client.post(path).status_code == 409


def test_ready_misses_the_emulate_worker_only_when_something_waits_for_it(
    client: TestClient, anonymous: TestClient, seed: Any
) -> None:
    assert "emulate" not in anonymous.get("/readyz").json()["missing"]
    emulate(seed)
    assert "emulate" in anonymous.get("/readyz").json()["missing"]


def test_a_gpu_that_is_not_connected_is_waited_for(client: TestClient, seed: Any) -> None:
    body = {"problem": gemm(dtype="f16"), "target": {"device": GPU_DEVICE}}
    posted = client.post("/v1/jobs", json=body).json()
    assert (posted["state"], posted["reason"]) == ("waiting", "no_device")
