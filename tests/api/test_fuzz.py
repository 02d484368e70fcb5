"""Does the service keep to its own description, whatever is asked, on both databases?

The examples are few and the same each time; ROOFTILE_FUZZ_EXAMPLES=200 tries so many an endpoint, at random.
"""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.core.failures import Failure
from schemathesis.generation import GenerationMode
from starlette.testclient import TestClient
from support.api import ADMIN, CPU, Seed, gemm

both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)

EXAMPLES = int(os.environ.get("ROOFTILE_FUZZ_EXAMPLES", "0"))
WANTED = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.allow_header_conformance,
    checks.ignored_auth,
]


def _times(few: int) -> settings:
    """So many examples of each endpoint: `few` in the tests, more when asked for by the variable."""
    return settings(
        max_examples=EXAMPLES or few,
        deadline=None,
        database=None,
        derandomize=EXAMPLES == 0,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _rows(seed: Seed) -> None:
    """Rows that half of the requests find."""
    seed.device()
    seed.tuned()


@both
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_what_is_described_is_what_happens(app: FastAPI, seed: Seed, mode: GenerationMode) -> None:
    """By the description, and against it: no 5xx, no answer that is not described."""
    app.state.rooftile.limits.most_guesses = 10**9  # each endpoint is tried with a wrong token
    _rows(seed)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen: Counter[int] = Counter()
    faults: list[str] = []

    def check(case: Any) -> None:
        for name in ("job_id", "trial_id", "release_id"):
            if name in (case.path_parameters or {}) and seen.total() % 2:
                case.path_parameters[name] = "1"  # rows that are there
        if "key" in (case.path_parameters or {}) and seen.total() % 2:
            case.path_parameters["key"] = CPU
        response = case.call(headers={"Authorization": f"Bearer {ADMIN}"})
        seen[response.status_code] += 1
        where = f"{case.method} {case.path} {case.path_parameters} {case.query} {case.body!r}"
        if 400 <= response.status_code < 500:
            told = json.loads(response.content)
            if not told["field"] or told["allowed"] is None:
                faults.append(f"{where}: {told}")
        try:
            case.validate_response(response, checks=WANTED)
        except* Failure as group:
            faults.extend(f"{where}: {failure}" for failure in group.exceptions)

    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/events"):
            continue  # a stream has no end to check; test_events does
        if mode is GenerationMode.NEGATIVE and not (
            operation.path_parameters or operation.query or operation.body
        ):
            continue  # nothing there can be wrong
        _times(6)(given(case=operation.as_strategy(generation_mode=mode))(check))()
    assert not faults, "\n\n".join(faults[:5])
    assert seen.total() > 80
    assert {404, 422} <= set(seen)


# -- requests that are nearly right -----------------------------------------------------------------------

JOB = {
    "problem": {
        **gemm(),
        "batch": 1,
        "dtype": {"a": "f32", "b": "f32", "acc": "f32", "c": "f32"},
        "layout": {"a": "mk", "b": "kn", "c": "mn"},
        "ld": {"a": 4096},
        "epilogue": {"bias": "n", "activation": "relu", "residual": False},
    },
    "target": {"device": CPU},
    "budget": {"trials": 6, "seconds": 2.5, "device_seconds": None},
    "policy": {"cache": "cold", "launch": "eager"},
    "seed": 1,
    "priority": 3,
    "force": True,
    "families": ["gemm_x86"],
    "emulate": "never",
}
SWEEP = {
    "problems": [
        {"problem": {"op": "gemm", "n": 64, "k": 64, "dtype": "f32"}, "sweep": {"m": [1, 2]}, "weight": 0.5}
    ],
    "device": CPU,
    "budget": {"trials": 6},
}
BEST = {"problem": gemm(), "device": CPU, "policy": {"cache": "cold", "launch": "eager"}}
MISSES = {
    "misses": [
        {"problem": gemm(), "device": CPU, "policy": {"cache": "cold"}, "level": "none", "count": 3},
        {"problem": gemm(m=16), "device": CPU},
    ]
}
NEARLY = [("/v1/jobs", JOB), ("/v1/jobs", SWEEP), ("/v1/best", BEST), ("/v1/demand", MISSES)]

# fmt: off
NASTY = [
    None, True, False, 0, 1, -1, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**38,
    10**399, 0.5,
    -0.0, 1e-320, 1e308, -1e308, 2.0**63, "", " ", "0", "-1", "1e5", "NaN", "Infinity", "null", "auto",
    "f32", "sm_90a",
    "x" * 300, "../../etc/passwd", "%2e%2e%2f", "'; DROP TABLE jobs; --", "\r\nX-Evil: 1", "\u202e",
    "\U0001f600",
    "e\u0301", "\ufeff", "\u2028", "\u0085", "١", "K", [], [[]], [None], {}, {"": {}}, {"a": 1}, [1, 2, 3],
    ["m"],
    [0] * 300, {str(n): n for n in range(300)}, {"__proto__": {}}, {"$ref": "#"},
]
# fmt: on
KEYS = [
    "",
    "m",
    "op",
    "schema",
    "device",
    "constructor",
    "__class__",
    "é",
    "x" * 300,
    "a.b",
    "a[0]",
    "\u202e",
]


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value in it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, item in items for place in _places(item, (*path, key)))]


def _spoiled(tree: Any, path: tuple[Any, ...], how: str, value: Any, key: str) -> Any:
    """The tree with one thing in it changed."""
    if not path:
        return value if how == "put" else tree
    out = copy.deepcopy(tree)
    holder = out
    for step in path[:-1]:
        holder = holder[step]
    if how == "put":
        holder[path[-1]] = value
    elif how == "drop":
        del holder[path[-1]]
    elif how == "twin" and isinstance(holder, list):
        holder.extend(holder * 3)
    elif isinstance(holder, dict):
        holder[key] = value
    return out


@both
@pytest.mark.parametrize(("path", "body"), NEARLY, ids=["job", "sweep", "best", "demand"])
def test_one_wrong_thing_in_a_good_request_is_never_a_fault_of_ours(
    client: TestClient, seed: Seed, path: str, body: Any
) -> None:
    _rows(seed)
    assert client.post(path, json=body).status_code in (200, 202)
    seen: Counter[int] = Counter()

    @_times(60)
    @given(
        place=st.sampled_from(_places(body)),
        how=st.sampled_from(["put", "put", "put", "drop", "twin", "add"]),
        value=st.sampled_from(NASTY),
        key=st.sampled_from(KEYS),
    )
    def check(place: tuple[Any, ...], how: str, value: Any, key: str) -> None:
        sent = json.dumps(_spoiled(body, place, how, value, key))
        answer = client.post(path, content=sent, headers={"Content-Type": "application/json"})
        seen[answer.status_code] += 1
        assert answer.status_code in (200, 202, 400, 422), (sent, answer.text)
        if answer.status_code >= 400:
            told = answer.json()
            assert told["field"], (sent, told)
            assert told["allowed"] is not None, (sent, told)
            assert len(answer.content) < 20_000
        json.loads(answer.content, parse_constant=_never)

    check()
    assert len(seen) >= 2


def _never(token: str) -> None:
    raise AssertionError(f"{token} in an answer")


# -- addresses --------------------------------------------------------------------------------------------

# fmt: off
ADDRESSES = [
    "/v1/jobs/{}", "/v1/jobs/{}/trials", "/v1/trials/{}", "/v1/problems/{}", "/v1/layers/{}/table",
    "/v1/artifacts/{}", "/jobs/{}", "/jobs/{}/live", "/trials/{}", "/static/{}", "/{}", "/v1/{}",
    "/v1/jobs?page_token={}", "/v1/jobs?limit={}", "/v1/jobs?state={}", "/v1/jobs/1/trials?page_token={}",
    "/v1/jobs/1/trials?order={}", "/v1/releases?after={}", "/v1/releases?device={}", "/v1/demand?device={}",
    "/v1/spaces?op=gemm&arch={}", "/v1/spaces?op={}", "/v1/spaces?op=gemm&arch=x86-64-v3&m={}",
    "/v1/portfolios?device={}", "/v1/portfolios?loss_percent={}", "/v1/portfolios?family={}",
    "/v1/spaces?op=gemm&device={}", "/?text={}", "/?device={}", "/?page_token={}", "/?dtype={}",
    "/jobs?page_token={}", "/jobs?state={}", "/jobs/1?problem={}", "/jobs/1?order={}",
    "/jobs/1?page_token={}",
]
PIECES = [
    "..", "../..", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "%00", "1%00", "%ff", "%C0%AF",
    "%ED%A0%80",
    "1e3", "0x1", "-1", "0", "01", "1_0", "+1", "1.0", "1;x", "9" * 19, "9" * 20, "9" * 5000, "%D9%A1",
    "1%20", "%20",
    "a" * 64, "A" * 64, "g" * 64, "%27%20OR%201=1--", "%0d%0aX-Evil:1", "{}", "%7B%7D", "null", "true",
    "[]", "%E2%80%AE",
    "1:cancel", "1%3Acancel", "1/1", "1//", "%2F", "%5C..%5C", "con", "eyJhIjoxfQ", "eyJhIjoxfQ==", "W10",
    "=", "a=b", "1&limit=2",
    CPU, "gpu-2335-132sm-141g-p700",
]
# fmt: on


@pytest.mark.parametrize("settings", ["postgres"], indirect=True)  # it refuses more than SQLite
def test_no_address_is_a_fault_of_ours(client: TestClient, seed: Seed) -> None:
    _rows(seed)
    seen: Counter[int] = Counter()
    for address in ADDRESSES:
        for piece in PIECES:
            asked = address.replace("{}", piece)
            answer = client.get(asked)
            seen[answer.status_code] += 1
            assert answer.status_code in (200, 303, 307, 404, 405, 422), (asked, answer.text)
            assert b"root:" not in answer.content
            assert "x-evil" not in answer.headers
    assert {200, 404, 422} <= set(seen)


def test_no_header_is_a_fault_of_ours(client: TestClient, seed: Seed) -> None:
    _rows(seed)
    values = [b"", b" ", b"\xff\xfe", b"x" * 8000, b"-1", b"9" * 400, b'"', b"*", b'"a", *', b"a=b; c"]
    names = [
        "If-None-Match", "Last-Event-ID", "Idempotency-Key", "Accept", "Cookie", "Content-Type",
        "X-CSRF-Token",
        "Content-Encoding", "HX-Request", "Range", "Expect", "X-Forwarded-For", "X-Forwarded-Proto",
        "X-Request-ID",
        "Origin", "Access-Control-Request-Method", "Host", "Content-Length", "If-Modified-Since",
        "X-HTTP-Method-Override",
    ]  # fmt: skip
    ask: list[Callable[[dict[str, bytes]], Any]] = [
        lambda headers: client.get("/jobs/1", headers=headers),
        lambda headers: client.post(
            "/v1/best", content=json.dumps(BEST), headers={"Content-Type": b"application/json", **headers}
        ),
    ]
    for name in names:
        for value in values:
            for one in ask:
                assert one({name: value}).status_code < 500, (name, value)
