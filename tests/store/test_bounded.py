"""Does any evidence become small, valid JSON?"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.store import bounded

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.binary(max_size=50),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=20), inner, max_size=20),
    max_leaves=60,
)


@settings(max_examples=60, deadline=None)
@given(ANY, st.sampled_from([400, 2000, 65536]))
def test_it_is_valid_small_and_stays_the_same(value: Any, limit: int) -> None:
    result = bounded.json_value(value, limit)
    text = json.dumps(result, allow_nan=False, ensure_ascii=False)
    assert len(text.encode("utf-8")) <= limit
    assert "\0" not in text
    assert bounded.json_value(result, limit) == result


def test_numbers_keep_their_meaning() -> None:
    value = {"nan": math.nan, "inf": [math.inf, -math.inf], "np": np.float32(1.5), "n": np.int64(3)}
    assert bounded.json_value(value) == {"nan": "NaN", "inf": ["Infinity", "-Infinity"], "np": 1.5, "n": 3}
    assert bounded.json_value({"big": 1 << 80, "t": (1, 2)}) == {"big": str(1 << 80), "t": [1, 2]}


def test_a_log_keeps_its_beginning_and_its_end() -> None:
    log = "first line\n" + "middle\n" * 50_000 + "last line"
    short = bounded.text(log)
    assert len(short.encode()) <= bounded.LIMIT_BYTES
    assert short.startswith("first line\n")
    assert short.endswith("last line")
    assert "bytes left out" in short
    assert bounded.text("short") == "short"


def test_long_lists_say_what_is_missing() -> None:
    result = bounded.json_value({"wrong": list(range(100_000))})
    assert result["wrong"][:3] == [0, 1, 2]
    assert "more left out" in result["wrong"][-1]


def test_what_can_not_be_kept_says_so() -> None:
    hopeless = {f"key {number}": {"a": [1.0] * 100} for number in range(2000)}
    result = bounded.json_value(hopeless, 300)
    assert "left out" in json.dumps(result) or "truncated" in result


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_columns_take_only_finite_numbers(value: float | None) -> None:
    assert bounded.number(value) is None
