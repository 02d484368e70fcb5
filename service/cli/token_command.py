"""How does `rooftile token` make, list and revoke tokens, and log browsers in and out?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import typer
from rich.table import Table

from service.cli.common import WrongUseError, opened, print_json, run_app
from service.cli.tables import table_console
from service.errors import OperationError
from service.paths import Home
from service.settings import get_settings
from service.store import audit, logins, tokens
from service.store.enums import AuditAction, Scope
from service.store.records import TokenRecord
from service.supervisor import setup
from service.supervisor.lock import running

app = typer.Typer(add_completion=False, no_args_is_help=True)
MOST_DAYS = 36500
MOST_OF_A_NAME = 200
MOST_ID = 2**63 - 1
"""No database has rows above it, and one asked for them says so in words of its own."""
_SCOPE = typer.Option([Scope.READ], "--scope", help="read, submit or admin; may be repeated.")
_JSON = typer.Option(False, "--json", help="Print one JSON document.")


@app.command()
def create(
    name: str = typer.Argument(..., help="Who or what will use it."),
    scope: list[Scope] = _SCOPE,
    days: float = typer.Option(0.0, help="Ends after so many days; 0 never."),
    as_json: bool = _JSON,
) -> None:
    """Make a token. Its text is shown this once; only its hash is kept."""
    _check_name(name)
    if not 0.0 <= days <= MOST_DAYS:  # neither is `nan`
        raise WrongUseError(f"--days has to be a number from 0 to {MOST_DAYS}, not {days:g}.")
    with opened("token") as database, database.begin() as s:
        record, clear = tokens.create(s, name, set(scope), days * 86400.0 if days else None)
        told = {"name": record.name, "scopes": sorted(str(one) for one in record.scopes), "days": days}
        audit.write(s, audit.command(), AuditAction.TOKEN_MADE, f"token:{record.id}", told)
    if as_json:
        print_json({**_row(record), "token": clear})
    else:
        print(clear)


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > MOST_OF_A_NAME:
        shown = ascii(name[:40])
        raise WrongUseError(
            f"NAME has to be a printable text of 1 to {MOST_OF_A_NAME} characters, not {shown}."
        )
    if tokens.is_own(name):
        raise WrongUseError(
            f"NAME may be neither {tokens.FROM_ENVIRONMENT} nor begin with {tokens.OF_A_HOME!r}:"
            " the service's own tokens are named so."
        )


@app.command("list")
def list_(as_json: bool = _JSON) -> None:
    """Show the tokens; never their text."""
    with opened("token") as database, database.read() as s:
        rows = tokens.listing(s)
    if as_json:
        print_json({"tokens": [_row(row) for row in rows]})
        return
    columns = ("id", "name", "scopes", "created", "last used", "expires", "state")
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        scopes = " ".join(sorted(row.scopes))
        used = _when(row.last_used_at)
        expires = _when(row.expires_at)
        table.add_row(str(row.id), row.name, scopes, _when(row.created_at), used, expires, _state(row))
    table_console().print(table, markup=False)


@app.command()
def revoke(
    token_id: int = typer.Argument(..., help="The id that `rooftile token list` shows."),
    as_json: bool = _JSON,
) -> None:
    """End a token now."""
    with opened("token") as database, database.begin() as s:
        revoked = 0 < token_id <= MOST_ID and tokens.revoke(s, token_id)
        if revoked:
            audit.write(s, audit.command(), AuditAction.TOKEN_REVOKED, f"token:{token_id}")
    if not revoked:
        raise OperationError(f"There is no valid token {token_id}.")
    if as_json:
        print_json({"id": token_id, "state": "revoked"})
    else:
        print(f"Token {token_id} is revoked.")


@app.command()
def logout(
    session_id: int | None = typer.Argument(
        None, help="The session, as GET /v1/audit?action=login shows it; without one, all and all open links."
    ),
    as_json: bool = _JSON,
) -> None:
    """End the sessions of browsers that were logged in by a link."""
    with opened("token") as database, database.begin() as s:
        if session_id is None:
            ended = logins.revoke_all(s)
        else:
            known = 0 < session_id <= MOST_ID and logins.revoke(s, session_id)
            ended = [session_id] if known else []
        for one in ended:
            audit.write(s, audit.command(), AuditAction.LOGOUT, f"session:{one}")
    if session_id is not None and not ended:
        raise OperationError(f"There is no session {session_id} that is logged in.")
    if as_json:
        print_json({"ended": ended})
    else:
        print(f"Browsers logged out: {len(ended)}.")


@app.command()
def link(
    url: str = typer.Option("", help="Address of the service as the browser reaches it."),
    as_json: bool = _JSON,
) -> None:
    """Make a link that logs a browser in, once, within ten minutes."""
    settings = get_settings()
    holder = running(Home(settings.home))
    at = url or (holder.url if holder is not None else None) or settings.url or "http://127.0.0.1:8417"
    with opened("token"):
        made = setup.login_link(settings.database_url, at.rstrip("/"))
    if as_json:
        print_json({"link": made})
    else:
        print(made)


def _row(record: TokenRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "name": record.name,
        "scopes": sorted(str(scope) for scope in record.scopes),
        "created_at": record.created_at.isoformat(),
        "expires_at": record.expires_at.isoformat() if record.expires_at else None,
        "last_used_at": record.last_used_at.isoformat() if record.last_used_at else None,
        "state": _state(record),
    }


def _state(record: TokenRecord) -> str:
    if record.revoked_at is not None:
        return "revoked"
    ended = record.expires_at is not None and record.expires_at <= datetime.now(UTC)
    return "expired" if ended else "valid"


def _when(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def main(argv: Sequence[str]) -> int:
    """Entry point `token`."""
    return run_app(app, "token", argv)
