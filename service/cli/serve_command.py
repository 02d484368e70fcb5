"""How does `rooftile serve` run the whole service in the foreground?"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

import typer

from service.cli.common import run_app
from service.settings import get_settings
from service.supervisor import Supervisor, setup

READY_S = 20.0

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    host: str = typer.Option("127.0.0.1", help="Address to listen on; the default is this machine only."),
    port: int = typer.Option(8417, min=0, max=65535, help="Port to listen on; 0 takes any free one."),
    workers: bool = typer.Option(True, help="Without workers only the API and the dashboard run."),
) -> None:
    """Run the service on this machine: API and dashboard, search, compile and measure workers."""
    settings = get_settings()
    supervisor = Supervisor(settings, command="serve", api=(host, port), workers=workers)
    with supervisor.stopping_on_signals():
        supervisor.start()
        try:
            assert supervisor.url is not None
            if _wait_ready(supervisor):
                print(f"Rooftile serves at {supervisor.url}")
                link = setup.login_link(settings.database_url, supervisor.url)
                print(f"Log in once with {link}")
                print(f"Data and logs are in {supervisor.home.root}; Ctrl-C stops everything.", flush=True)
            supervisor.run()
        finally:
            supervisor.stop()
    print("rooftile: stopped.", file=sys.stderr)


def _wait_ready(supervisor: Supervisor) -> bool:
    """Wait until the API answers, looking after the children meanwhile. False when asked to stop first."""
    deadline = time.monotonic() + READY_S
    while not supervisor.stop_requested:
        supervisor.poll()
        try:
            with urllib.request.urlopen(f"{supervisor.url}/healthz", timeout=1.0):
                return True
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                return True  # slow is not broken: the supervisor goes on watching the API
        time.sleep(0.1)
    return False


def main(argv: Sequence[str]) -> int:
    """Entry point `serve`."""
    return run_app(app, "serve", argv)
