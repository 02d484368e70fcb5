"""Does a program get from a Client to a right result, and learn plainly why when it does not?"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile import Client, Gemm
from rooftile.device import local_cpu
from rooftile.errors import (
    ArtifactError,
    DeviceError,
    FieldError,
    LaunchError,
    ServiceError,
    ServiceUnreachable,
)
from rooftile.kernel import runs_on
from rooftile.plan import LaunchPlan

M, N, K = 5, 7, 11
PROBLEM = Gemm(M, N, K, "f32")


def uniform(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def best_json(**changes: Any) -> dict[str, Any]:
    policy = {"cache": "cold", "launch": "eager"}
    return {
        "level": "exact", "reason": "Tuned for exactly this.", "problem_key": PROBLEM.key,
        "problem": PROBLEM.to_json(), "device": local_cpu().key, "policy": policy,
        "release_id": 1, "generation": 1, "arch": "x86-64-v3", "family": "toy", "schedule": None,
        "schedule_text": None, "time_us": 10.0, "baseline_time_us": 25.0, "artifact": None, "pool": None,
        "launch": None, "toolchain": None, "noise": None, "tie_set": None, "published_at": None,
        "a_member_of_a_newer_service": 1,
    } | changes  # fmt: skip


@pytest.fixture
def serve(
    peer: Any, toy_so: Path, pool_so: Path, toy_plan: Callable[..., LaunchPlan]
) -> Callable[..., dict[str, Any]]:
    """serve(**changes): the peer answers lookups with the toy kernel, changed like that."""

    def start(split: bool = False, plan: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        data = {}
        for name, path in (("artifact", toy_so), ("pool", pool_so)):
            # ELF ignores what follows its last section: an artifact that no other test has loaded.
            content = path.read_bytes() + os.urandom(8)
            data[name] = hashlib.sha256(content).hexdigest()
            peer.routes[f"GET /v1/artifacts/{data[name]}"] = (200, content, "application/octet-stream")
        launch = toy_plan(split=split).to_json() | (plan or {})
        answer = best_json(**data, launch=launch) | changes
        peer.routes["POST /v1/best"] = (200, answer)
        return answer

    return start


Serve = Callable[..., dict[str, Any]]


# -- jobs -------------------------------------------------------------------------------------------------


def accepted(peer: Any) -> None:
    peer.routes["POST /v1/jobs"] = (
        202,
        {"id": 3, "state": "queued"},
        "application/json",
        {"Location": "/v1/jobs/3"},
    )


def test_submit_says_what_was_asked_and_nothing_else(peer: Any) -> None:
    accepted(peer)
    client = Client(peer.url)
    job = client.submit(PROBLEM)
    assert (job.id, job.state, job.ended) == (3, "queued", False)
    asked = {"op": "gemm", "m": 1, "n": 2, "k": 3, "dtype": "f32"}
    client.submit(asked, budget={"trials": 5}, seed=0, force=True, device="auto",
                  policy={"cache": "warm"}, idempotency_key="once")  # fmt: skip
    client.submit(PROBLEM, sweep={"m": [1, 2, 4]})
    client.submit([PROBLEM, {"op": "gemm"}], sweep={"m": (1,)}, target={"arch": "x86-64-v4"})
    open_m = {name: value for name, value in PROBLEM.to_json().items() if name != "m"}
    assert [request.json for request in peer.seen] == [
        {"problem": PROBLEM.to_json()},
        {"problem": asked, "budget": {"trials": 5}, "seed": 0,
         "force": True, "device": "auto", "policy": {"cache": "warm"}},
        {"problem": open_m, "sweep": {"m": [1, 2, 4]}},
        {"problems": [{"problem": open_m, "sweep": {"m": [1]}},
                      {"problem": {"op": "gemm"}, "sweep": {"m": [1]}}],
         "target": {"arch": "x86-64-v4"}},
    ]  # fmt: skip
    assert peer.seen[1].headers["Idempotency-Key"] == "once"
    assert "Idempotency-Key" not in peer.seen[0].headers


def test_a_refused_request_names_the_field(peer: Any) -> None:
    document = {"status": 422, "detail": "m: -1", "field": "problem.m", "allowed": "0 to 2147483647"}
    peer.routes["POST /v1/jobs"] = (422, document, "application/problem+json")
    with pytest.raises(ServiceError) as caught:
        Client(peer.url).submit({"op": "gemm", "m": -1})
    assert caught.value.problem["field"] == "problem.m"
    with pytest.raises(FieldError):
        Client(peer.url).kernel({"op": "gemm", "m": -1, "n": 1, "k": 1, "dtype": "f32"})


def states(*given: str | int) -> Callable[[Any], Any]:
    """One state (or error status) for each request, the last one for ever."""
    left = list(given)

    def answer(request: Any) -> Any:
        state = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(state, int):
            return state, {"status": state, "detail": "no"}, "application/problem+json"
        return 200, {"id": 3, "state": state, "best": {"time_us": 1.0}, "problems": [{"best": None}]}

    return answer


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_wait_ends_with_the_job_and_rides_out_a_restart(peer: Any, end: str) -> None:
    accepted(peer)
    peer.routes["GET /v1/jobs/3"] = states("queued", "waiting", 503, 500, "running", "finishing", end)
    seen: list[str] = []
    job = Client(peer.url).submit(PROBLEM).wait(poll=0.01, on_change=lambda job: seen.append(job.state))
    assert job.state == end
    assert job.ended
    assert seen == ["queued", "waiting", "running", "finishing", end]
    assert job.best() == {"time_us": 1.0}
    assert job.bests() == [None]


def test_wait_gives_up_in_time(peer: Any) -> None:
    accepted(peer)
    peer.routes["GET /v1/jobs/3"] = states("running")
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"job 3 is running after 0.3 s"):
        Client(peer.url).submit(PROBLEM).wait(timeout=0.3)
    assert time.monotonic() - start < 2


def test_wait_does_not_wait_for_what_is_not_there(peer: Any) -> None:
    with pytest.raises(ServiceError, match="404"):
        Client(peer.url).job(9)
    accepted(peer)
    peer.routes["GET /v1/jobs/3"] = states("running", 401)
    with pytest.raises(ServiceError, match="401"):
        Client(peer.url).submit(PROBLEM).wait(poll=0.01)


def test_lists_come_page_by_page(peer: Any) -> None:
    peer.routes["GET /v1/jobs?state=done"] = (200, {"jobs": [{"id": 2}], "next_page_token": "x/y="})
    peer.routes["GET /v1/jobs?state=done&page_token=x%2Fy%3D"] = (
        200,
        {"jobs": [{"id": 1}], "next_page_token": None},
    )
    assert [job["id"] for job in Client(peer.url).jobs(state="done")] == [2, 1]


def test_a_job_is_steered(peer: Any) -> None:
    accepted(peer)
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        peer.routes[f"POST /v1/jobs/3:{verb}"] = (200, {"id": 3, "state": state})
    job = Client(peer.url).submit(PROBLEM)
    assert [job.pause().state, job.resume().state, job.cancel().state] == ["paused", "running", "cancelled"]


# -- kernels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_from_lookup_to_result(peer: Any, serve: Serve, split: bool, own_home: Path) -> None:
    serve(split=split)
    client = Client(peer.url)
    best = client.best(PROBLEM)
    assert (best.level, best.time_us, best.speedup) == ("exact", 10.0, 2.5)
    assert peer.seen[0].json == {"problem": PROBLEM.to_json(), "device": local_cpu().key}
    kernel = client.kernel(PROBLEM)
    assert (kernel.level, kernel.reason) == ("exact", "Tuned for exactly this.")
    a, b, out = uniform(M, K), uniform(K, N), np.full((M, N), np.nan, np.float32)
    assert kernel(a, b, out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)
    assert kernel.fallbacks == 0
    fetched = [request.path for request in peer.seen if "artifacts" in request.path]
    assert len(fetched) == 2
    Client(peer.url).kernel(PROBLEM)(a, b, out)
    assert [request.path for request in peer.seen if "artifacts" in request.path] == fetched
    assert len(list((own_home / "cache").rglob("*.so"))) == 2


def test_a_call_beyond_the_plan_runs_on_the_baseline_and_is_counted(peer: Any, serve: Serve) -> None:
    serve()
    kernel = Client(peer.url).kernel(PROBLEM)
    a, b = uniform(M, K), uniform(K, N)
    np.testing.assert_allclose(kernel(np.asfortranarray(a), b), a @ b, rtol=1e-4, atol=1e-5)
    assert kernel.fallbacks == 1
    assert kernel.last_fallback is not None
    assert kernel.last_fallback.startswith("a has strides")
    with pytest.raises(LaunchError, match="a has shape"):
        kernel(a.T, b)
    assert kernel.fallbacks == 1


@pytest.mark.parametrize("level", ["baseline", "none"])
def test_the_baseline_is_called_like_a_kernel(peer: Any, level: str) -> None:
    peer.routes["POST /v1/best"] = (200, best_json(level=level, reason="why", time_us=None))
    kernel = Client(peer.url).kernel(PROBLEM)
    assert (kernel.level, kernel.reason, kernel.best.speedup) == (level, "why", None)
    a, b, out = uniform(M, K), uniform(K, N), np.empty((M, N), np.float32)
    assert kernel(a, b, out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)
    with pytest.raises(LaunchError, match="a has shape"):
        kernel(a.T, b)


def test_what_numpy_cannot_hold_is_said_at_once(peer: Any) -> None:
    peer.routes["POST /v1/best"] = (200, best_json(level="none"))
    with pytest.raises(LaunchError, match="numpy arrays cannot hold bf16"):
        Client(peer.url).kernel(Gemm(M, N, K, "bf16"))


def test_wrong_bytes_are_never_loaded(peer: Any, serve: Serve, own_home: Path) -> None:
    answer = serve()
    path = f"GET /v1/artifacts/{answer['artifact']}"
    content = peer.routes[path][1]
    for bad in (content[:-1] + b"x", content[:100], b"", b"<html>Please log in</html>"):
        peer.routes[path] = (200, bad, "application/octet-stream")
        with pytest.raises(ArtifactError, match="twice: not loaded"):
            Client(peer.url).kernel(PROBLEM)
    peer.routes[path] = (403, b"forbidden", "text/html")
    with pytest.raises(ServiceError, match="403"):
        Client(peer.url).kernel(PROBLEM)
    peer.routes[path] = (200, content, "application/octet-stream")
    Client(peer.url).kernel(PROBLEM)
    assert next((own_home / "cache").rglob(f"{answer['artifact']}.so")).read_bytes() == content


def test_kernels_that_cannot_run_here_are_not_loaded(peer: Any, serve: Serve) -> None:
    serve(pool=None)
    with pytest.raises(ArtifactError, match="names no thread pool"):
        Client(peer.url).kernel(PROBLEM)
    serve(plan={"arch": "x86-64-v9"})
    with pytest.raises(DeviceError, match="the kernel is for x86-64-v9"):
        Client(peer.url).kernel(PROBLEM)
    assert not any("artifacts" in request.path for request in peer.seen)


def test_which_arch_runs_where() -> None:
    assert runs_on("x86-64-v3", "x86-64-v3")
    assert runs_on("x86-64-v3", "x86-64-v4-vnni")
    assert runs_on("x86-64-v4-vnni", "x86-64-v4-vnni-bf16")
    assert not runs_on("x86-64-v4", "x86-64-v3")
    assert not runs_on("x86-64-v4-bf16", "x86-64-v4-vnni")
    assert not runs_on("sm_90a", "x86-64-v4")


@pytest.mark.parametrize(
    "answer", [[], {}, {"level": "exact"}, best_json(level="superb"), best_json(reason=None)]
)
def test_an_answer_that_is_none(peer: Any, answer: Any) -> None:
    peer.routes["POST /v1/best"] = (200, answer)
    with pytest.raises(ServiceUnreachable):
        Client(peer.url).best(PROBLEM)


def test_a_fresh_process_gives_the_same_result_on_awkward_memory(
    peer: Any, serve: Serve, own_home: Path
) -> None:
    """Outputs full of NaN, bases at odd offsets, pitches over the row length, a workspace nobody has cleared:
    what is published must bring everything it needs."""
    serve(split=True)
    code = f"""
import numpy as np
from rooftile import Client, Gemm
kernel = Client({peer.url!r}).kernel(Gemm({M}, {N}, {K}, "f32"))
rng = np.random.default_rng(0)
for offset in (0, 4, 64):
    for pad in (0, 8):
        def array(rows, cols, value=None):
            store = np.full(offset + rows * (cols + pad), np.nan, np.float32)
            view = store[offset:].reshape(rows, cols + pad)[:, :cols]
            if value is None:
                view[...] = rng.uniform(-1, 1, (rows, cols))
            return view
        a, b, out = array({M}, {K}), array({K}, {N}), array({M}, {N}, np.nan)
        for _ in range(3):
            kernel(a, b, out)
            np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)
            assert pad == 0 or np.isnan(out.base.reshape(-1)[offset:].reshape({M}, -1)[:, {N}:]).all()
            out[...] = np.nan
assert kernel.fallbacks == 0
"""
    environment = {**os.environ, "ROOFTILE_HOME": str(own_home)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_explain_gathers_what_is_known(peer: Any) -> None:
    peer.routes["POST /v1/best"] = (200, best_json())
    client = Client(peer.url)
    assert client.explain(PROBLEM) == {"best": best_json(), "problem": None}
    known = {"problem_key": PROBLEM.key, "releases": []}
    peer.routes[f"GET /v1/problems/{PROBLEM.key}"] = (200, known)
    assert client.explain(PROBLEM.to_json())["problem"] == known
    peer.routes[f"GET /v1/problems/{PROBLEM.key}"] = (500, {}, "application/problem+json")
    with pytest.raises(ServiceError, match="500"):
        client.explain(PROBLEM)


def test_threads_may_share_a_client(peer: Any, serve: Serve) -> None:
    serve()
    client = Client(peer.url)
    a, b = uniform(M, K), uniform(K, N)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                np.testing.assert_allclose(client.kernel(PROBLEM)(a, b), a @ b, rtol=1e-4, atol=1e-5)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert json.dumps(best_json())


@pytest.mark.parametrize("answer", [[], {}, {"jobs": 5}, {"jobs": [5]}, {"jobs": [], "next_page_token": 7}])
def test_a_list_that_is_none_is_a_bad_answer(peer: Any, answer: Any) -> None:
    peer.routes["GET /v1/jobs"] = (200, answer)
    with pytest.raises(ServiceUnreachable):
        list(Client(peer.url).jobs())


def test_a_list_that_leads_back_to_itself_has_an_end(peer: Any) -> None:
    page = (200, {"jobs": [{"id": 1}], "next_page_token": "x"})
    peer.routes["GET /v1/jobs"] = peer.routes["GET /v1/jobs?page_token=x"] = page
    with pytest.raises(ServiceUnreachable, match="next page"):
        list(Client(peer.url).jobs())


def test_an_accepted_job_has_a_number(peer: Any) -> None:
    peer.routes["POST /v1/jobs"] = (202, {"id": None, "state": "queued"})
    with pytest.raises(ServiceUnreachable, match="no id"):
        Client(peer.url).submit(PROBLEM)


def test_problems_of_a_job_are_a_list_of_objects(peer: Any) -> None:
    peer.routes["GET /v1/jobs/3"] = (200, {"id": 3, "state": "running", "problems": [5]})
    with pytest.raises(ServiceUnreachable, match="problems"):
        Client(peer.url).job(3).bests()
