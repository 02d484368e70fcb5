"""How does `rooftile migrate` change the tables of a database?"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from service.cli.common import print_json, run_app
from service.paths import prepare_home
from service.settings import get_settings
from service.supervisor import setup

app = typer.Typer(add_completion=False)


@app.command()
def migrate(
    down: bool = typer.Option(False, "--down", help="Take back the newest migration instead."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Bring the tables of ROOFTILE_DATABASE_URL to this version (as `serve` and `tune` do by themselves)."""
    settings = get_settings()
    prepare_home(settings.home)
    before, after = setup.migrate(settings.database_url, down=down)
    if as_json:
        print_json({"before": before, "after": after, "changed": before != after})
    elif before == after:
        print(f"The tables are at {after or 'nothing'} already.")
    else:
        print(f"The tables went from {before or 'nothing'} to {after or 'nothing'}.")


def main(argv: Sequence[str]) -> int:
    """Entry point `migrate`."""
    return run_app(app, "migrate", argv)
