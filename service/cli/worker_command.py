"""How does `rooftile worker` become one worker of a cluster, or of this machine?

This process is replaced by the worker's own main (`python -m worker ...`, `python -m service.search`):
the service sends work by name and never imports the hands that do it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from rooftile.device import parse_device_key

from service import periods
from service.cli.common import run_app
from service.errors import OperationError
from service.host import ALIAS, host_name
from service.settings import get_settings
from service.store import workers
from service.store.database import Database
from service.store.enums import WorkerKind

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def search() -> None:
    """Advance jobs: propose schedules, decide races, publish releases."""
    get_settings()
    _become("service.search")


@app.command("compile")
def compile_() -> None:
    """Build what the search proposes. Needs a C compiler and no GPU."""
    get_settings()
    _become("worker", "compile")


@app.command()
def emulate() -> None:
    """Prove CUDA schedules in the emulator. Any CPU will do: no GPU, no driver."""
    get_settings()
    _become("worker", "emulate")


@app.command()
def measure(
    device: str = typer.Option(
        "auto",
        help="Key, or a GPU's UUID, of the device this worker owns; auto is the only GPU, else the CPU.",
    ),
) -> None:
    """Verify and time on one device. Only one worker may own a device."""
    get_settings()
    # What is no key may be the UUID of a GPU, which only the worker can judge.
    named = device in ("auto", ALIAS) or device.startswith(("GPU-", "MIG-"))
    _become("worker", "measure", "--device", device if named else str(parse_device_key(device)))


@app.command()
def alive(kind: str = typer.Argument(..., help="search, compile, emulate or measure")) -> None:
    """Exit code 0 when a worker of this kind on this host reported lately: a container's health check."""
    if kind not in (WorkerKind.SEARCH, WorkerKind.COMPILE, WorkerKind.EMULATE, WorkerKind.MEASURE):
        raise typer.BadParameter("search, compile, emulate or measure", param_hint="KIND")
    database = Database(get_settings().database_url, name="rooftile alive")
    with database.read() as s:
        here = [row for row in workers.alive(s, WorkerKind(kind)) if row.host == host_name()]
    database.close()
    for row in here:
        print(f"{row.id} is {row.state}")
    if not here:
        raise OperationError(f"No {kind} worker of this host reported in the last {periods.alive_s():.0f} s.")


def _become(module: str, *arguments: str) -> None:
    # See Supervisor: a folder named `worker` where the user stands must not be taken for ours.
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def main(argv: Sequence[str]) -> int:
    """Entry point `worker`."""
    return run_app(app, "worker", argv)
