"""Is the description strict JSON, and does it name every error? (That it is kept to: test_fuzz.py)"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

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
        "/v1/portfolios",
        "/v1/archs",
        "/v1/audit",
        "/v1/spaces",
        "/v1/demand",
        "/healthz",
        "/readyz",
        "/metrics",
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
