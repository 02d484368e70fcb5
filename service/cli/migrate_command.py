"""How does `rooftile migrate` change the tables of a database?"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from service.cli.common import print_json, run_app
from service.paths import prepare_home
from service.settings import get_settings
from service.store import migrate as store_migrate

app = typer.Typer(add_completion=False)


@app.command()
def migrate(
    down: bool = typer.Option(False, "--down", help="Take back the newest migration instead."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Bring the tables of ROOFTILE_DATABASE_URL to this version (as `serve` and `tune` do by themselves)."""
    settings = get_settings()
    prepare_home(settings.home)
    url = settings.database_url
    before = store_migrate.current(url)
    after = _one_down(url, before) if down else store_migrate.upgrade(url)
    if as_json:
        print_json({"before": before, "after": after, "changed": before != after})
    elif before == after:
        print(f"The tables are at {after or 'nothing'} already.")
    else:
        print(f"The tables went from {before or 'nothing'} to {after or 'nothing'}.")


def _one_down(url: str, before: str | None) -> str | None:
    if before is None:
        return None
    return store_migrate.downgrade(url, "-1")


def main(argv: Sequence[str]) -> int:
    """Entry point `migrate`."""
    return run_app(app, "migrate", argv)
