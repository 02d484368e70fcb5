"""Does a page token only open the list that gave it out?"""

from __future__ import annotations

import base64
import json

import pytest

from service.api.errors import BadFieldError
from service.api.pages import MAX_LIMIT, decode_token, encode_token, page


def test_a_token_gives_its_key_back() -> None:
    token = encode_token("trials-7-fastest", (12.5, 99))
    assert decode_token("trials-7-fastest", token, (float, int)) == (12.5, 99)
    assert token.isascii()
    assert "=" not in token


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "é",
        "....",
        "A" * 600,
        encode_token("jobs", (1, 2)),
        encode_token("others", (1,)),
        encode_token("jobs", ("1",)),
        encode_token("jobs", (True,)),
        encode_token("jobs", (2**63,)),
        base64.urlsafe_b64encode(b"[" * 400).decode(),
        base64.urlsafe_b64encode(json.dumps(["jobs", None]).encode()).decode(),
    ],
)
def test_other_tokens_are_refused_by_name(token: str) -> None:
    with pytest.raises(BadFieldError) as caught:
        decode_token("jobs", token, (int,))
    assert caught.value.field == "page_token"


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_no_row_has_is_refused(number: str) -> None:
    token = base64.urlsafe_b64encode(f'["fastest",{number},1]'.encode()).decode().rstrip("=")
    with pytest.raises(BadFieldError):
        decode_token("fastest", token, (float, int))


def test_text_keys_are_plain() -> None:
    assert decode_token("p", encode_token("p", ("abc",)), (str,)) == ("abc",)
    with pytest.raises(BadFieldError):
        decode_token("p", encode_token("p", ("a\x00",)), (str,))


@pytest.mark.parametrize("limit", [0, -1, MAX_LIMIT + 1])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(BadFieldError) as caught:
        page("jobs", limit, None, (int,))
    assert caught.value.field == "limit"
