"""Is the description strict JSON, does it name every error, and does the service keep to it when fuzzed?"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.core.failures import Failure
from starlette.testclient import TestClient
from support.api import ADMIN

WANTED = {
    "GET": {
        "/v1/jobs",
        "/v1/jobs/{job_id}",
        "/v1/jobs/{job_id}/trials",
        "/v1/jobs/{job_id}/events",
        "/v1/trials/{trial_id}",
        "/v1/problems/{key}",
        "/v1/releases",
        "/v1/layers/{key}/table",
        "/v1/artifacts/{digest}",
        "/v1/devices",
        "/v1/archs",
        "/v1/spaces",
        "/v1/demand",
        "/healthz",
        "/readyz",
    },
    "POST": {
        "/v1/jobs",
        "/v1/best",
        "/v1/demand",
        *(f"/v1/devices/{{key}}:{verb}" for verb in ("suspend", "resume")),
        *(f"/v1/jobs/{{job_id}}:{verb}" for verb in ("cancel", "pause", "resume")),
        *(
            f"/v1/releases/{{release_id}}:{verb}"
            for verb in ("pin", "unpin", "publish", "rollback", "withdraw")
        ),
    },
}


def _never(token: str) -> None:
    raise AssertionError(f"{token} in the description")


@pytest.fixture
def description(anonymous: TestClient) -> dict[str, Any]:
    answer = anonymous.get("/openapi.json")
    assert answer.status_code == 200
    document: dict[str, Any] = json.loads(answer.content, parse_constant=_never)
    return document


def test_every_endpoint_is_described_and_no_page_is(description: dict[str, Any]) -> None:
    found: dict[str, set[str]] = {"GET": set(), "POST": set()}
    for path, operations in description["paths"].items():
        for method in operations:
            found[method.upper()].add(path)
    assert found == WANTED


def test_every_error_is_named_as_a_problem(description: dict[str, Any]) -> None:
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            needed = {"422", "500", "503"}
            if path.startswith("/v1/"):
                needed |= {"401", "403"}
                assert operation["security"] == [{"bearer": []}]
            if "{" in path:
                needed |= {"404"}
            if "requestBody" in operation:
                needed |= {"400", "413", "415"}
            if method == "post" and ":" in path and "/devices/" not in path:  # any state allows both
                needed |= {"409"}
            assert needed <= set(answers), (path, method)
            for status, answer in answers.items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (path, status)
                    reference = answer["content"]["application/problem+json"]["schema"]["$ref"]
                    assert reference == "#/components/schemas/Problem"
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description)))
    assert references <= set(description["components"]["schemas"])


def test_the_service_keeps_to_its_description_when_fuzzed(app: FastAPI, seed: Any) -> None:
    """A few examples an endpoint, over rows that exist: no 500, no answer that is not described."""
    seed.device()
    seed.tuned()
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    wanted = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    seen: dict[int, int] = {}
    faults: list[str] = []

    def check(case: Any) -> None:
        for name in ("job_id", "trial_id", "release_id"):
            if name in (case.path_parameters or {}) and sum(seen.values()) % 2:
                case.path_parameters[name] = "1"  # half of them: rows that are there
        response = case.call(headers={"Authorization": f"Bearer {ADMIN}"})
        seen[response.status_code] = seen.get(response.status_code, 0) + 1
        if 400 <= response.status_code < 500:
            told = json.loads(response.content)
            if not told["field"] or told["allowed"] is None:
                faults.append(f"{case.method} {case.path}: {told}")
        try:
            case.validate_response(response, checks=wanted)
        except* Failure as group:
            faults.extend(
                f"{case.method} {case.path} {case.body!r}: {failure}" for failure in group.exceptions
            )

    quick = settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for result in schema.get_all_operations():
        operation = result.ok()
        if not operation.path.endswith("/events"):  # a stream has no end to check; test_events does
            quick(given(case=operation.as_strategy())(check))()
    assert not faults, "\n\n".join(faults[:5])
    assert sum(seen.values()) > 100
    assert {200, 404, 422} <= set(seen)
