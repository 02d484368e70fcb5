"""How do `rooftile backup FILE` and `rooftile restore FILE` keep and bring back a service?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from service.cli.common import print_json, run_app
from service.errors import OperationError
from service.paths import prepare_home
from service.settings import get_settings
from service.store import backup as store_backup
from service.store import migrate
from service.supervisor.lock import running

backup_app = typer.Typer(add_completion=False)
restore_app = typer.Typer(add_completion=False)


@backup_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not be there.")],
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Put the database, artifacts included, into one file. The service may run meanwhile."""
    settings = get_settings()
    store_backup.backup(settings.database_url, file)
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes": size})
    else:
        print(f"{file}: {size / 2**20:.1f} MiB. It holds hashes of tokens: keep it as safe as the database.")


@restore_app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `rooftile backup` wrote.")],
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Bring a backup into an empty database, and its tables to this version. Nothing may run on it."""
    settings = get_settings()
    home = prepare_home(settings.home)
    if (holder := running(home)) is not None:
        raise OperationError(f"`rooftile {holder.command}` runs here as process {holder.pid}; end it first.")
    if migrate.current(settings.database_url) is not None:
        raise OperationError("The database has tables already; restore into an empty one.")
    store_backup.restore(settings.database_url, file)
    revision = migrate.upgrade(settings.database_url)
    if as_json:
        print_json({"file": str(file), "revision": revision})
    else:
        print(f"Restored; the tables are at {revision}.")


def main_backup(argv: Sequence[str]) -> int:
    """Entry point `backup`."""
    return run_app(backup_app, "backup", argv)


def main_restore(argv: Sequence[str]) -> int:
    """Entry point `restore`."""
    return run_app(restore_app, "restore", argv)
