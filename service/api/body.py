"""How is a request body read as strict JSON, and what is refused on the way?

`json.loads` takes more than JSON: NaN and Infinity, keys that come twice (the last one wins), lone
surrogates, a number that overflows to infinity. Each of these is refused with the path of the field it
stands in, found by leaving a mark in the parsed tree and walking it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from service.api.errors import BadBodyError, BadFieldError, WrongMediaError

MAX_BODY_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_DIGITS = 400  # the widest finite double written out in full has 309
_STRICT = "strict JSON (RFC 8259) in UTF-8, each key once"
_SHOWN = 20
"""Characters on each side of a fault that an answer shows."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Stands in the tree where the text held something that JSON does not allow."""

    why: str
    value: object


def parse_json(data: bytes) -> Any:
    """The value of `data`, or BadBodyError naming the field that is not JSON."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadBodyError(
            f"The body is not UTF-8: byte {error.start} cannot be read.",
            field="body",
            value=f"0x{data[error.start]:02x}",
            allowed=_STRICT,
        ) from None
    if not text.strip():
        raise BadBodyError(
            "The body is empty; a JSON object is expected.", field="body", value="", allowed="an object"
        )
    try:
        tree = json.loads(
            text.removeprefix("\ufeff"),
            parse_constant=lambda token: _Mark(f"{token} is not JSON", token),
            parse_float=_float,
            parse_int=_int,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise BadBodyError(
            f"The body is not JSON: {error.msg} at line {error.lineno} column {error.colno}.",
            field="body",
            value=error.doc[max(0, error.pos - _SHOWN) : error.pos + _SHOWN],
            allowed=_STRICT,
        ) from None
    except RecursionError:
        raise _too_deep("body") from None
    _refuse_marks(tree)
    return tree


async def json_body(request: Request) -> Any:
    """Dependency: the body of a POST, of at most MAX_BODY_BYTES (the limit is kept by a middleware)."""
    check_media(request)
    return parse_json(await request.body())


def check_media(request: Request) -> None:
    """WrongMediaError where the body is sent as anything but plain JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise WrongMediaError(
            "The body has to be sent as application/json.",
            field="Content-Type",
            value=media or None,
            allowed=["application/json"],
        )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise WrongMediaError(
            "A compressed body is not read.", field="Content-Encoding", value=coding, allowed=["identity"]
        )


async def json_object(request: Request) -> dict[str, Any]:
    """Dependency: the body of a POST as a JSON object."""
    return an_object(await json_body(request))


def an_object(tree: object) -> dict[str, Any]:
    """`tree`; BadFieldError where it is something else than a JSON object."""
    if not isinstance(tree, dict):
        raise BadFieldError(
            "The body has to be a JSON object.", field="body", value=tree, allowed="an object"
        )
    return tree


def _float(text: str) -> float | _Mark:
    value = float(text)
    return value if math.isfinite(value) else _Mark("the number is too large", text[:40])


def _int(text: str) -> int | _Mark:
    return int(text) if len(text) <= MAX_DIGITS else _Mark(f"the number has {len(text)} digits", text[:40])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        out[key] = _Mark("the key comes twice", key) if key in out else value
    return out


def _refuse_marks(tree: object) -> None:
    stack: list[tuple[str, object, int]] = [("", tree, 1)]
    while stack:
        path, node, depth = stack.pop()
        if isinstance(node, _Mark):
            where = path or "body"
            raise BadBodyError(f"{where}: {node.why}.", field=where, value=node.value, allowed=_STRICT)
        if isinstance(node, str):
            _refuse_text(path, node)
        elif isinstance(node, dict | list):
            if depth > MAX_DEPTH:
                raise _too_deep(path)
            if isinstance(node, list):
                stack.extend((f"{path}[{index}]", item, depth + 1) for index, item in enumerate(node))
                continue
            for key, item in node.items():
                _refuse_text(path or "body", key)
                stack.append((f"{path}.{key}" if path else key or '""', item, depth + 1))


def _refuse_text(path: str, text: str) -> None:
    # Neither can be stored: Postgres refuses NUL in text, and a lone surrogate has no UTF-8.
    if "\x00" in text:
        what = "the character U+0000"
    elif any("\ud800" <= letter <= "\udfff" for letter in text):
        what = "half a surrogate pair"
    else:
        return
    where, allowed = path or "body", "a text without U+0000 and half surrogate pairs"
    raise BadBodyError(f"{where}: a text holds {what}.", field=where, value=text, allowed=allowed)


def _too_deep(path: str) -> BadBodyError:
    return BadBodyError(
        f"The body is nested over {MAX_DEPTH} levels deep.",
        field=path[:80] or "body",
        value=f"over {MAX_DEPTH} levels",
        allowed={"max_depth": MAX_DEPTH},
    )
