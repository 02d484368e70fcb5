"""Is a body that is not strict JSON refused, and does the answer name the field?"""

from __future__ import annotations

import pytest

from service.api.body import MAX_DEPTH, parse_json
from service.api.errors import ApiError, BadBodyError, json_safe


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b'{"problem": {"m": NaN}}', "problem.m"),
        (b'{"problem": {"m": Infinity}}', "problem.m"),
        (b'{"sweep": {"m": [1, -Infinity]}}', "sweep.m[1]"),
        (b'{"problem": {"m": 1e999}}', "problem.m"),
        (b'{"problem": {"m": ' + b"9" * 5000 + b"}}", "problem.m"),
        (b'{"problem": {"op": "gemm", "op": "attention"}}', "problem.op"),
        (b'{"a": "\\u0000"}', "a"),
        (b'{"a": ["\\ud800"]}', "a[0]"),
        (b'{"\\ud800": 1}', "body"),
        (b'{"a": \xff}', "body"),
        (b'{"a": 1', "body"),
        (b"", "body"),
        (b"   ", "body"),
        (b"{'a': 1}", "body"),
        (b"[" * 100_000, "body"),
    ],
)
def test_what_is_not_strict_json_names_its_field(text: bytes, field: str) -> None:
    with pytest.raises(BadBodyError) as caught:
        parse_json(text)
    assert caught.value.field == field
    assert caught.value.status == 400


def test_nesting_is_limited_by_us_and_not_by_the_stack() -> None:
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(BadBodyError, match="nested"):
        parse_json(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


def test_strict_json_comes_through_unchanged() -> None:
    assert parse_json('\ufeff{"a": [1, 2.5, null, true, "µ"], "b": {}}'.encode()) == {
        "a": [1, 2.5, None, True, "µ"],
        "b": {},
    }
    assert parse_json(b"9007199254740993") == 9007199254740993


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**53 + 1, "9007199254740993"),
        pytest.param(10**6000, "an integer of 19932 bits", id="huge"),
        (b"\xff", "b'\\xff'"),
        (True, True),
        (None, None),
        ({"a": {"b": {"c": {"d": 1}}}}, {"a": {"b": {"c": "..."}}}),
    ],
)
def test_a_value_in_an_error_is_strict_json(value: object, shown: object) -> None:
    assert json_safe(value) == shown


def test_a_value_in_an_error_is_short() -> None:
    document = ApiError("x" * 5000, field="f" * 5000, value={"v" * 5000: ["y" * 5000] * 5000}).problem()
    assert len(str(document)) < 12_000
    assert json_safe("\ud800") == "?"
