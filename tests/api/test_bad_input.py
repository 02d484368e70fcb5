"""Is every bad input a 4xx problem that names the field, on every endpoint that reads a body?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rooftile.problem.gemm import GEMM_FIELDS
from starlette.testclient import TestClient

from service.api.body import MAX_BODY_BYTES
from service.jobs import request

CPU = "cpu-intel-6-85-8c-x86-64-v4"
GOOD = {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"}


def problem(answer: Any, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in statuses, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = json.loads(answer.content, parse_constant=_never)
    assert document["status"] == answer.status_code
    assert document["detail"]
    assert document["field"]
    assert document["allowed"] is not None
    return document


def _never(token: str) -> None:
    raise AssertionError(f"{token} in an answer")


BAD_PROBLEMS = [
    ({**GOOD, "op": "convolution"}, "op"),
    ({**GOOD, "op": "gem"}, "op"),
    ({**GOOD, "op": 7}, "op"),
    ({**GOOD, "op": "grouped_gemm"}, "op"),
    ({**GOOD, "m": -1}, "m"),
    ({**GOOD, "m": 2**31}, "m"),
    ({**GOOD, "n": 10**30}, "n"),
    ({**GOOD, "k": 1.5}, "k"),
    ({**GOOD, "k": "4096"}, "k"),
    ({**GOOD, "k": True}, "k"),
    ({**GOOD, "k": None}, "k"),
    ({**GOOD, "batch": 0}, "batch"),
    ({**GOOD, "dtype": "fp32"}, "dtype"),
    ({**GOOD, "dtype": "float32"}, "dtype"),
    ({**GOOD, "dtype": {"a": "f32", "b": "f99"}}, "dtype.b"),
    ({**GOOD, "layout": {"b": "kk"}}, "layout.b"),
    ({**GOOD, "layout": "row"}, "layout"),
    ({**GOOD, "epilogue": {"activation": "swish"}}, "epilogue.activation"),
    ({**GOOD, "mm": 3}, "mm"),
    ({name: value for name, value in GOOD.items() if name != "n"}, "n"),
    ([], ""),
    ("gemm", ""),
    (None, ""),
]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/best", "/v1/demand"])
def test_a_wrong_problem_is_refused_by_field(client: TestClient, path: str) -> None:
    for wrong, field in BAD_PROBLEMS:
        body: dict[str, Any] = {"problem": wrong, "device": CPU}
        prefix = "problem"
        if path == "/v1/demand":
            body, prefix = {"misses": [body]}, "misses[0].problem"
        document = problem(client.post(path, json=body), 422)
        assert document["field"] == (f"{prefix}.{field}" if field else prefix), wrong
        assert document["allowed"], wrong


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/best"])
@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"problem": {"op": "gemm", "m": NaN, "n": 8, "k": 8, "dtype": "f32"}}', "problem.m"),
        ('{"problem": {"op": "gemm", "m": Infinity, "n": 8, "k": 8, "dtype": "f32"}}', "problem.m"),
        ('{"problem": {"op": "gemm", "m": 1e400, "n": 8, "k": 8, "dtype": "f32"}}', "problem.m"),
        ('{"problem": {"op": "gemm", "m": 8, "m": 9}}', "problem.m"),
        ('{"problem": ', "body"),
        ("", "body"),
        ("[1, 2]", "body"),
        ("null", "body"),
        ('"text"', "body"),
        ("[" * 50_000, "body"),
    ],
)
def test_what_is_not_json_is_refused_by_field(client: TestClient, path: str, text: str, field: str) -> None:
    answer = client.post(path, content=text, headers={"Content-Type": "application/json"})
    assert problem(answer, 400, 422)["field"] == field


def test_bytes_that_are_not_utf8_and_other_media_are_refused(client: TestClient) -> None:
    for content in (b'{"problem": "\xff"}', json.dumps({"problem": GOOD}).encode("utf-16")):
        answer = client.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
        assert problem(answer, 400)["field"] == "body"
    text = json.dumps({"problem": GOOD})
    for media in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post("/v1/jobs", content=text, headers={"Content-Type": media})
        assert problem(answer, 415)["field"] == "Content-Type"
    zipped = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert problem(client.post("/v1/jobs", content=text, headers=zipped), 415)["field"] == "Content-Encoding"


def test_a_body_over_the_limit_is_413_declared_or_not(client: TestClient) -> None:
    text = json.dumps({"problem": GOOD, "pad": "x" * MAX_BODY_BYTES}).encode()
    headers = {"Content-Type": "application/json"}

    def chunks() -> Any:
        for start in range(0, len(text), 50_000):
            yield text[start : start + 50_000]

    for content in (text, chunks()):
        assert problem(client.post("/v1/jobs", content=content, headers=headers), 413)["field"] == "body"
    padded = json.dumps({"problem": GOOD, "device": "cpu-x"}).encode().ljust(MAX_BODY_BYTES)
    assert problem(client.post("/v1/best", content=padded, headers=headers), 422)["field"] == "device"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"problem": GOOD, "device": "my-cpu"}, "device"),
        ({"problem": GOOD, "device": 7}, "device"),
        ({"problem": GOOD, "device": "cpu-intel-6-85-8c-x86-64-v9"}, "device"),
        ({"problem": GOOD, "target": {"device": "x"}}, "target.device"),
        ({"problem": GOOD, "target": {"devices": []}}, "target.devices"),
        ({"problem": GOOD, "target": {"arch": "sm_90"}}, "target.arch"),
        ({"problem": GOOD, "target": {"arch": "sm_90a"}}, "target.arch"),
        ({"problem": GOOD, "budget": {"trials": 0}}, "budget.trials"),
        ({"problem": GOOD, "budget": {"seconds": -1}}, "budget.seconds"),
        ({"problem": GOOD, "budget": []}, "budget"),
        ({"problem": GOOD, "policy": {"cache": "hot"}}, "policy.cache"),
        ({"problem": GOOD, "device": CPU, "policy": {"launch": "graph"}}, "policy.launch"),
        ({"problem": GOOD, "sweep": {"m": [1, 2]}}, "problem.m"),
        ({"problem": {k: v for k, v in GOOD.items() if k != "m"}, "sweep": {"m": [1, -2]}}, "sweep.m[1]"),
        (
            {"problem": {k: v for k, v in GOOD.items() if k != "m"}, "sweep": {"m": list(range(999))}},
            "sweep.m",
        ),
        ({"problem": GOOD, "seed": -1}, "seed"),
        ({"problem": GOOD, "force": 1}, "force"),
        ({"problem": GOOD, "device": CPU, "families": ["gemm_sm100"]}, "families[0]"),
        ({"problem": GOOD, "device": CPU, "params": {"nonsense": 1}}, "params.nonsense"),
        ({"problem": GOOD, "budgets": {}}, "budgets"),
        ({"problems": [{"problem": {**GOOD, "m": -1}}]}, "problems[0].problem.m"),
        ({}, "problem"),
    ],
)
def test_every_other_field_of_a_job_is_checked(
    client: TestClient, seed: Any, body: dict[str, Any], field: str
) -> None:
    seed.device()
    assert problem(client.post("/v1/jobs", json=body), 422)["field"] == field
    assert client.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"problem": GOOD, "device": "my-cpu"}, "device"),
        ({"problem": GOOD, "device": None}, "device"),
        ({"problem": GOOD, "policy": 7}, "policy"),
        ({"problem": GOOD, "policy": {"cache": "hot"}}, "policy.cache"),
        ({"problem": GOOD, "policy": {"cash": "cold"}}, "policy.cash"),
        ({"problem": GOOD, "budget": {}}, "budget"),
        ({}, "problem"),
    ],
)
def test_every_field_of_a_lookup_is_checked(client: TestClient, body: dict[str, Any], field: str) -> None:
    assert problem(client.post("/v1/best", json=body), 422)["field"] == field


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/spaces", "op"),
        ("/v1/spaces?op=gemm", "arch"),
        ("/v1/spaces?op=gem&arch=x86-64-v3", "op"),
        ("/v1/spaces?op=gemm&arch=avx512", "arch"),
        ("/v1/spaces?op=gemm&arch=x86-64-v3&dtype=fp32", "dtype"),
        ("/v1/spaces?op=gemm&arch=x86-64-v3&m=-1", "m"),
        ("/v1/spaces?op=gemm&arch=x86-64-v3&m=x", "m"),
        ("/v1/spaces?op=attention&arch=x86-64-v3&m=1", "m"),
        ("/v1/spaces?op=gemm&device=mine", "device"),
        (f"/v1/spaces?op=gemm&device={CPU}&arch=x86-64-v3", "arch"),
        ("/v1/spaces?op=gemm&arch=%00", "arch"),
        ("/v1/releases?after=-1", "after"),
        ("/v1/releases?after=99999999999999999999", "after"),
        ("/v1/releases?device=%00", "device"),
        ("/v1/demand?limit=0", "limit"),
        (f"/v1/layers/{'a' * 64}/table?device=mine", "layer_key"),
    ],
)
def test_every_query_is_checked(client: TestClient, path: str, field: str) -> None:
    assert problem(client.get(path), 404, 422)["field"] == field


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/jobs?limt=5", "limt", "5"),
        ("/v1/jobs?limit=5&limit=6", "limit", ["5", "6"]),
        ("/v1/jobs?state=done&state=done", "state", ["done", "done"]),
        ("/v1/jobs/1?x=1", "x", "1"),
        ("/v1/jobs/1/trials?order=newest&state=failed&sort=up", "sort", "up"),
        ("/v1/jobs/1/events?from=3", "from", "3"),
        ("/v1/devices?x", "x", ""),
        (f"/v1/artifacts/{'a' * 64}?download=1", "download", "1"),
        (f"/v1/layers/{'a' * 64}/table?device=auto&polcy=cold", "polcy", "cold"),
        ("/v1/releases?" + "y" * 3000 + "=" + "z" * 3000, "y" * 64, "z" * 200 + "..."),
    ],
)
def test_a_query_parameter_that_is_unknown_or_comes_twice_is_refused(
    client: TestClient, path: str, field: str, value: object
) -> None:
    told = problem(client.get(path), 422)
    assert (told["field"], told["value"]) == (field, value)
    assert len(told["detail"]) < 300


def test_an_unknown_query_parameter_is_told_the_known_ones(client: TestClient) -> None:
    told = problem(client.get("/v1/jobs?limt=5"), 422)
    assert told["allowed"] == ["limit", "page_token", "state", "op"]
    assert told["nearest"] == "limit"
    assert problem(client.post("/v1/best?level=exact", json={"problem": GOOD}), 422)["field"] == "level"
    assert problem(client.get("/v1/jobs?=5"), 422)["field"] == '""'


def test_who_may_not_ask_is_told_that_first(anonymous: TestClient) -> None:
    assert problem(anonymous.get("/v1/jobs?limt=5"), 401)["field"] == "Authorization"


def test_the_value_is_shown_and_not_only_its_kind(client: TestClient) -> None:
    def refused(**body: Any) -> dict[str, Any]:
        return problem(client.post("/v1/jobs", json={"problem": GOOD, "device": CPU, **body}), 422)

    told = refused(params={"nope": 1})
    assert (told["field"], told["value"]) == ("params.nope", 1)
    assert told["detail"].startswith("params.nope: 1 is not allowed")
    assert refused(params={"nope": [1, 2]})["detail"].startswith("params.nope: [1, 2] is not allowed")
    assert refused(seed={"a": 1})["detail"].startswith("seed: {'a': 1} is not allowed")
    many = refused(families=["gemm_x86"] * 999)
    assert many["detail"].startswith("families: ['gemm_x86', ")
    assert "(a list of 999)" in many["detail"]


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/v1/jobs/999", "id"),
        ("GET", "/v1/jobs/x", "id"),
        ("GET", "/v1/jobs/999/trials", "id"),
        ("GET", "/v1/jobs/999/events", "id"),
        ("GET", "/v1/trials/999", "id"),
        ("GET", f"/v1/problems/{'a' * 64}", "problem_key"),
        ("GET", f"/v1/layers/{'a' * 64}/table", "layer_key"),
        ("GET", f"/v1/artifacts/{'a' * 64}", "sha256"),
        ("GET", "/v1/jobs?page_token=x", "page_token"),
        ("GET", "/v1/jobs?limit=x", "limit"),
        ("GET", f"/v1/jobs?page_token={'x' * 600}", "page_token"),
        ("POST", "/v1/jobs/999:cancel", "id"),
        ("POST", "/v1/releases/999:pin", "id"),
        ("GET", "/v1/nothing", "path"),
        ("PUT", "/v1/jobs", "method"),
    ],
)
def test_every_refusal_names_field_value_and_what_is_allowed(
    client: TestClient, method: str, path: str, field: str
) -> None:
    told = problem(client.request(method, path), 404, 405, 422)
    assert told["field"] == field
    assert told["value"] is not None


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(
        ["auto", "gemm", "f32", "sm_80", CPU, "\ud800", "\x00", "x" * 5000, 2**31, 2**63, 1e308]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
JOB_FIELDS = (*request.FIELDS, "misses", "level", "count", "nonsense")


def _put(body: Any, path: list[Any], value: Any) -> Any:
    """`body` with `value` where `path` leads."""
    if not path:
        return value
    if isinstance(body, dict):
        return {**body, path[0]: _put(body.get(path[0]), path[1:], value)}
    return {path[0]: _put(None, path[1:], value)}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/best", "/v1/demand"])
@settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_no_body_is_a_fault_of_the_service(client: TestClient, path: str, data: st.DataObject) -> None:
    """Good bodies with anything in the place of one field, or put beside them: an answer, and never a 500."""
    body: Any = {"problem": GOOD, "device": CPU}
    if path == "/v1/demand":
        body = {"misses": [{**body, "level": "none"}]}
    where = data.draw(
        st.lists(st.sampled_from(JOB_FIELDS), min_size=1, max_size=2)
        | st.tuples(st.just("problem"), st.sampled_from(GEMM_FIELDS)).map(list)
        | st.just([])
    )
    value = data.draw(ANY_JSON)
    if path == "/v1/demand" and where and data.draw(st.booleans()):
        body = {"misses": [_put(body["misses"][0], where, value)]}
    else:
        body = _put(body, where, value)
    text = json.dumps(body)
    if data.draw(st.integers(0, 5)) == 0:  # broken off, or with a key that comes twice
        text = data.draw(
            st.sampled_from([text[:-1], text[: len(text) // 2], text.replace("{", '{"m": 1, ', 2)])
        )
    media = data.draw(st.sampled_from(["application/json"] * 9 + ["text/plain"]))
    answer = client.post(path, content=text, headers={"Content-Type": media})
    assert answer.status_code < 500, text
    if answer.status_code >= 400:
        problem(answer, answer.status_code)
        assert len(answer.content) < 8000


def test_an_error_never_grows_with_what_was_sent(client: TestClient) -> None:
    for value in ("x" * 500_000, ["y" * 1000] * 500, {"z" * 5000: 1}, 10**390):
        answer = client.post("/v1/jobs", json={"problem": {**GOOD, "m": value}})
        problem(answer, 422)
        assert len(answer.content) < 4000
    named = client.post("/v1/jobs", json={"problem": {**GOOD, "q" * 100_000: 1}})
    problem(named, 422)
    assert len(named.content) < 4000


INT8 = {"op": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "s8"}


@pytest.mark.parametrize("swept", [False, True])
def test_a_layout_that_alone_is_in_the_way_is_named(client: TestClient, swept: bool) -> None:
    body: dict[str, Any] = {"problem": INT8, "target": {"arch": "sm_80"}}
    if swept:
        sizes = {name: value for name, value in INT8.items() if name != "m"}
        body |= {"problem": sizes, "sweep": {"m": [1, 2]}}
    told = problem(client.post("/v1/jobs", json=body), 422)
    assert (told["field"], told["value"], told["nearest"]) == ("problem.layout.b", "kn", "nk")
    assert "what gemm_sm80 computes on sm_80: 8-bit operands must be contiguous along k" in told["detail"]
    body["problem"] = {**body["problem"], "layout": {"b": "nk"}}
    assert client.post("/v1/jobs", json=body).status_code in (201, 202)


def test_a_result_that_no_grid_covers_is_refused_by_its_size(client: TestClient) -> None:
    most = 2**31 - 1
    body: dict[str, Any] = {
        "problem": {**GOOD, "m": most, "n": most, "k": most, "dtype": "f16"},
        "target": {"arch": "sm_80"},
    }
    told = problem(client.post("/v1/jobs", json=body), 422)
    assert (told["field"], told["value"]) == ("problem.m", most)
    assert "a grid has 2147483647 blocks at most" in told["allowed"]


def test_the_family_that_comes_closest_speaks_first(client: TestClient) -> None:
    body = {"problem": {**INT8, "dtype": "f32"}, "target": {"arch": "sm_80"}}
    told = problem(client.post("/v1/jobs", json=body), 422)
    assert told["field"] == "target.arch"
    assert "(gemm_sm80: dtype.a: " in told["detail"]
    assert told["detail"].index("gemm_sm80") < told["detail"].index("gemm_x86")


def test_a_dtype_that_only_gpus_have_is_hinted_at_an_arch(client: TestClient) -> None:
    body: dict[str, Any] = {"problem": {**INT8, "dtype": "bf16"}, "device": CPU}
    told = problem(client.post("/v1/jobs", json=body), 422)
    assert told["field"] == "device"
    assert "target.arch (--arch) sm_80" in told["detail"]
    body["problem"] = {**INT8, "dtype": "f64"}
    assert "--arch" not in problem(client.post("/v1/jobs", json=body), 422)["detail"]


def test_choices_of_a_parameter_are_told_family_by_family(client: TestClient) -> None:
    problem = {"op": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "f16"}
    body = {"problem": problem, "target": {"arch": "sm_90a"}, "params": {"stages": [99]}}
    allowed = client.post("/v1/jobs", json=body).json()["allowed"]
    for family in ("gemm_sm90", "gemm_sm80", "gemm_sm70"):
        assert f"({family})" in allowed
    body["params"] = {"bk": [7]}
    body["families"] = ["gemm_sm80"]
    assert client.post("/v1/jobs", json=body).json()["allowed"] == "one of 16, 32, 64 for problem"
