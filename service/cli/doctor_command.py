"""How does `rooftile doctor` show what it found?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from service.cli.common import FAILED, print_json, run_app
from service.cli.tables import table_console
from service.doctor import examine
from service.doctor_cluster import Check, State
from service.settings import get_settings

app = typer.Typer(add_completion=False)

_STYLES = {State.OK: "green", State.NOTE: "yellow", State.MISSING: "bold red"}


@app.command()
def doctor(as_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """Say what is here, what is missing and how to get it. Exit code 1 when something needed is missing."""
    checks = examine(get_settings())
    healthy = all(check.state is not State.MISSING for check in checks)
    if as_json:
        print_json({"healthy": healthy, "checks": [asdict(check) for check in checks]})
    else:
        _show(checks)
    if not healthy:
        raise typer.Exit(FAILED)


def _show(checks: Sequence[Check]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        text = check.found + (f"\n{check.fix}" if check.fix else "")
        table.add_row(Text(str(check.state), style=_STYLES[check.state]), check.name, Text(text))
    table_console().print(table)


def main(argv: Sequence[str]) -> int:
    """Entry point `doctor`."""
    return run_app(app, "doctor", argv)
