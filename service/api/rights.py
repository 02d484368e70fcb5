"""Who may do what? One table for the page docs/security.md and for the tests that try each cell of it.

`python -m service.api.rights` writes the tables into the page. The routes guard themselves (`needs`,
`Viewer`); this table is written apart from them, so that a guard that is lost makes a test fail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from service.paths import source_root
from service.store.enums import Scope

READ, SUBMIT, ADMIN = Scope.READ, Scope.SUBMIT, Scope.ADMIN


class Who(Enum):
    """Who asks. Each is a column of the table; the value is its heading."""

    NOBODY = "nobody"
    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"
    COOKIE = "cookie + CSRF"
    COOKIE_ALONE = "cookie"
    EXPIRED = "expired token"
    REVOKED = "revoked token"
    GONE_COOKIE = "ended cookie"


class Kind(Enum):
    """How a route refuses: the API by 401 and 403, a page by the way to the login."""

    API = "api"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Right:
    """One route, and the least scope it asks for (None: it is open to everybody)."""

    method: str
    path: str
    needs: Scope | None
    kind: Kind = Kind.API
    note: str = ""

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    def outcome(self, who: Who) -> str:
        """`yes`, `401`, `403` or `login` (a redirect to the login page)."""
        if self.needs is None:
            # a token that is wrong is not looked at where none is needed
            return "yes"
        stranger = "401" if self.kind is Kind.API else "login"
        if who in (Who.NOBODY, Who.EXPIRED, Who.REVOKED, Who.GONE_COOKIE):
            return stranger
        if who is Who.COOKIE:
            return "yes"
        if who is Who.COOKIE_ALONE:
            return "403" if self.changes else "yes"
        order = (READ, SUBMIT, ADMIN)
        has = {Who.READ: READ, Who.SUBMIT: SUBMIT, Who.ADMIN: ADMIN}[who]
        return "yes" if order.index(has) >= order.index(self.needs) else "403"


_OWN = "its own jobs; of others: admin"

RIGHTS: tuple[Right, ...] = (
    Right("GET", "/healthz", None),
    Right("GET", "/readyz", None),
    Right("GET", "/openapi.json", None),
    Right("GET", "/static", None),
    Right("GET", "/login", None),
    Right("POST", "/v1/jobs", SUBMIT),
    Right("GET", "/metrics", READ),
    Right("GET", "/v1/jobs", READ),
    Right("GET", "/v1/jobs/{job_id}", READ),
    Right("GET", "/v1/jobs/{job_id}/events", READ),
    Right("GET", "/v1/jobs/{job_id}/trials", READ),
    Right("POST", "/v1/jobs/{job_id}:cancel", SUBMIT, note=_OWN),
    Right("POST", "/v1/jobs/{job_id}:pause", SUBMIT, note=_OWN),
    Right("POST", "/v1/jobs/{job_id}:resume", SUBMIT, note=_OWN),
    Right("GET", "/v1/trials/{trial_id}", READ),
    Right("GET", "/v1/problems/{key}", READ),
    Right("GET", "/v1/layers/{key}/table", READ),
    Right("GET", "/v1/audit", ADMIN),
    Right("POST", "/v1/best", READ),
    Right("GET", "/v1/releases", READ),
    Right("POST", "/v1/releases/{release_id}:pin", ADMIN),
    Right("POST", "/v1/releases/{release_id}:unpin", ADMIN),
    Right("POST", "/v1/releases/{release_id}:rollback", ADMIN),
    Right("POST", "/v1/releases/{release_id}:publish", ADMIN),
    Right("POST", "/v1/releases/{release_id}:withdraw", ADMIN),
    Right("GET", "/v1/artifacts/{digest}", READ),
    Right("GET", "/v1/devices", READ),
    Right("POST", "/v1/devices/{key}:suspend", ADMIN),
    Right("POST", "/v1/devices/{key}:resume", ADMIN),
    Right("GET", "/v1/portfolios", READ),
    Right("GET", "/v1/archs", READ),
    Right("GET", "/v1/spaces", READ),
    Right("GET", "/v1/demand", READ),
    Right("POST", "/v1/demand", READ),
    Right("GET", "/", READ, Kind.PAGE),
    Right("GET", "/jobs", READ, Kind.PAGE),
    Right("GET", "/jobs/{job_id}", READ, Kind.PAGE),
    Right("GET", "/jobs/{job_id}/live", READ, Kind.PAGE),
    Right("POST", "/jobs/{job_id}/{verb}", SUBMIT, Kind.PAGE, note=_OWN),
    Right("GET", "/trials/{trial_id}", READ, Kind.PAGE),
    Right("POST", "/logout", READ, Kind.PAGE),
)


@dataclass(frozen=True, slots=True)
class CommandRight:
    """One command: it asks the service with a token of at least this scope, or it opens what lies on disk."""

    words: str
    needs: Scope | None
    opens: str = ""


_HOME = "the home and the database"

COMMANDS: tuple[CommandRight, ...] = (
    CommandRight("submit", SUBMIT),
    CommandRight("watch", READ),
    CommandRight("jobs", READ),
    CommandRight("cancel", SUBMIT),
    CommandRight("pause", SUBMIT),
    CommandRight("resume", SUBMIT),
    CommandRight("trial", READ),
    CommandRight("best", READ),
    CommandRight("explain", READ),
    CommandRight("version", None, "nothing"),
    CommandRight("serve", None, _HOME),
    CommandRight("tune", None, _HOME),
    CommandRight("worker", None, _HOME),
    CommandRight("migrate", None, "the database"),
    CommandRight("token create", None, "the database"),
    CommandRight("token list", None, "the database"),
    CommandRight("token revoke", None, "the database"),
    CommandRight("token logout", None, "the database"),
    CommandRight("token link", None, "the database"),
    CommandRight("device list", None, "the database"),
    CommandRight("device suspend", None, "the database"),
    CommandRight("device resume", None, "the database"),
    CommandRight("compact", None, "the database"),
    CommandRight("backup", None, _HOME),
    CommandRight("restore", None, _HOME),
    CommandRight("doctor", None, _HOME),
)

BEGIN, END = "<!-- rights: begin -->", "<!-- rights: end -->"


def render() -> str:
    """The two tables, from the above alone."""
    heads = ["route", *(who.value for who in Who), "note"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for right in RIGHTS:
        cells = [f"`{right.method} {right.path}`", *(right.outcome(who) for who in Who), right.note]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_commands()])


def _commands() -> Iterable[str]:
    yield "| command | asks the service with a token of | opens itself |"
    yield "|---|---|---|"
    for command in COMMANDS:
        asks = "" if command.needs is None else f"{command.needs} or more"
        yield f"| `rooftile {command.words}` | {asks} | {command.opens} |"


def in_page(page: str) -> str:
    """The page with the tables of now."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{render()}\n\n{END}{tail}"


def main() -> int:
    """Write the tables into docs/security.md of the source tree."""
    root = source_root()
    if root is None:
        print("rooftile: docs/security.md is written in a checkout only.", file=sys.stderr)
        return 1
    page = root / "docs" / "security.md"
    page.write_text(in_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
