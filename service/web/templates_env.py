"""How is a page rendered: one Jinja environment, our filters, and static addresses with a hash?"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from service.api.auth import Principal
from service.web import units

HERE = Path(__file__).resolve().parent
STATIC = HERE / "static"


@lru_cache(maxsize=64)
def static(name: str) -> str:
    """The address of a static file; its hash is in it, so that a browser may keep the file for good."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)


@lru_cache(maxsize=1)
def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.globals["static"] = static
    env.filters.update(
        {
            "time_us": units.time_us,
            "percent": units.percent,
            "ratio": units.ratio,
            "count": units.count,
            "counted": units.counted,
            "seconds": units.seconds,
            "bytes": units.byte_count,
            "when": units.when,
            "day": units.day,
            "short": units.short,
            "significant": units.significant,
            "pretty": _pretty,
        }
    )
    return env


def page(
    name: str, principal: Principal | None, *, here: str = "", status: int = 200, **context: Any
) -> HTMLResponse:
    """A page of the dashboard as an answer."""
    who = None if principal is None else {"scopes": principal.shown_scopes, "csrf": principal.csrf}
    text = environment().get_template(name).render(who=who, here=here, **context)
    return HTMLResponse(text, status_code=status)
