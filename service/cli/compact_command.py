"""How does `rooftile compact` let go of old bulk by hand?"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from service.cli.common import print_json, run_app
from service.jobs.retention import Retention
from service.settings import get_settings
from service.store.database import Database

app = typer.Typer(add_completion=False)


@app.command()
def compact(
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would go, and change nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Let go of old samples, logs, events, and of bytes that can be built again (ROOFTILE_KEEP_..._DAYS).
    Search workers do so by themselves, once an hour."""
    settings = get_settings()
    database = Database(settings.database_url, name="rooftile-compact")
    try:
        database.ping()
        counts = Retention(database, settings, dry=dry_run).run()
    finally:
        database.close()
    if as_json:
        print_json({"dry_run": dry_run, "counts": dict(counts)})
        return
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "nothing"
    print(f"{'Would let go' if dry_run else 'Let go'} of: {told}.")


def main(argv: Sequence[str]) -> int:
    """Entry point `compact`."""
    return run_app(app, "compact", argv)
