"""How are path and query parameters written, and how are they refused?"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.convertors import CONVERTOR_TYPES, Convertor, register_url_convertor

from service.api.errors import BadFieldError, NotFoundError

MAX_ID = 2**63 - 1


class _IdConvertor(Convertor[str]):
    """A path segment without a colon, so that `/v1/jobs/7:cancel` is never taken for job "7:cancel"."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


if "id" not in CONVERTOR_TYPES:
    register_url_convertor("id", _IdConvertor())

IdPath = Annotated[str, Path(description="id of the row", examples=["1"])]
Sha256Path = Annotated[str, Path(description="sha256 in hexadecimal", examples=["0" * 64])]
LimitQuery = Annotated[int | None, Query(ge=1, le=200, description="rows of a page")]
TokenQuery = Annotated[
    str | None, Query(max_length=512, description="next_page_token of the page before; opaque")
]


WHERE = {
    "job": "the id of a job: GET /v1/jobs lists them",
    "trial": "the id of a trial: GET /v1/jobs/{id}/trials lists a job's",
    "release": "the release_id of a release: GET /v1/releases lists them",
    "problem": "the problem_key of a problem that was asked for: a job or release names it",
    "layer": "the layer_key of a problem that was asked for: a job or release names it",
    "device": "the key of a device that was ever connected: GET /v1/devices lists them",
    "artifact": "the sha256 of an artifact that is kept: a release names its own",
}
"""Thing -> what names one, and where that is to be found."""


def absent(what: str, name: object, field: str = "id") -> NotFoundError:
    """There is no such thing, and where to look for those that there are."""
    shown = str(name)[:70]
    return NotFoundError(f"There is no {what} {shown}.", field=field, value=name, allowed=WHERE[what])


def row_id(text: str, what: str) -> int:
    """The id in a path; what cannot be one is simply not there."""
    if text.isascii() and text.isdecimal() and len(text) <= 19 and 0 < int(text) <= MAX_ID:
        return int(text)
    raise absent(what, text)


def sha256(text: str, what: str, field: str) -> str:
    """The hash in a path, in lower case."""
    if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text):
        return text
    raise absent(what, text, field)


def plain(text: str | None, field: str, most: int = 200) -> str | None:
    """A filter's text: short and printable (the database takes no NUL)."""
    if text is None or text == "":
        return None
    if len(text) > most or not text.isprintable():
        raise BadFieldError(
            f"{field} has to be a printable text of at most {most} characters.",
            field=field,
            value=text,
            allowed=f"a printable text of at most {most} characters",
        )
    return text


def one_of(text: str | None, names: tuple[str, ...], field: str) -> str | None:
    """A filter that is one word of a closed list."""
    if text is None or text == "":
        return None
    if text in names:
        return text
    from rooftile.problem import nearest_name

    raise BadFieldError(
        f"{field}: {text[:60]!r} is not one of {', '.join(names)}.",
        field=field,
        value=text,
        allowed=list(names),
        nearest=nearest_name(text, names),
    )
