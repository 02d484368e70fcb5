"""How does `rooftile worker` become one worker of a cluster, or of this machine?

This process is replaced by the worker's own main (`python -m worker ...`, `python -m service.search`):
the service sends work by name and never imports the hands that do it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from rooftile.device import local_cpu, parse_device_key

from service.cli.common import run_app
from service.settings import get_settings

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
def measure(
    device: str = typer.Option("auto", help="Key of the device this worker owns; auto is this machine's."),
) -> None:
    """Verify and time on one device. Only one worker may own a device."""
    get_settings()
    key = local_cpu().key if device == "auto" else str(parse_device_key(device))
    _become("worker", "measure", "--device", key)


def _become(module: str, *arguments: str) -> None:
    # See Supervisor: a folder named `worker` where the user stands must not be taken for ours.
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def main(argv: Sequence[str]) -> int:
    """Entry point `worker`."""
    return run_app(app, "worker", argv)
