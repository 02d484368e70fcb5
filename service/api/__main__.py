"""How does the API run as a process: `python -m service.api --host H --port P`?"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.api.app import create_app, state_of_app
from service.api.files import raise_limit
from service.api.protocol import BoundedHttp
from service.bus import be_child, say_who
from service.errors import OperationError, PortTakenError
from service.host import host_name
from service.settings import process_settings
from service.store.errors import StoreError

# Streams notice a shutdown within one poll; what is still open after this is cut.
GRACE_S = 2


class _Server(uvicorn.Server):
    """Tells the streams to end as soon as a signal arrives: uvicorn alone would wait for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        state_of_app(self._app).stopping.set()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or PortTakenError in one sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio turns Nagle's algorithm off for each connection; without, the end of
    # every answer on a kept connection waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise PortTakenError(f"Cannot listen on {host} port {port}: {error}.") from None
    return listener


def configured(app: FastAPI) -> uvicorn.Config:
    """How the server below the application is set up."""
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        log_config=None,
        # The access log would keep one-time login codes and page tokens.
        access_log=False,
        server_header=False,
        # uvicorn would believe whoever is on this machine; proxies that are named are believed in app.py.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan="on",
    )


FULL_EVERY = 100
"""Python would look through all objects for rings ten times as often. With an index of ten thousand releases
that takes 150 ms, in which nobody is answered, and a list of 200 releases made it happen each time."""


def main(argv: Sequence[str]) -> int:
    """Exit code 0 after a shutdown by signal, 2 wrong use, 1 anything else."""
    parser = argparse.ArgumentParser(prog="python -m service.api", description="Rooftile's REST API.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine)")
    parser.add_argument("--port", type=int, default=8417, help="port to listen on; 0 takes a free one")
    arguments = parser.parse_args(argv)
    be_child()
    raise_limit()
    gc.set_threshold(700, 10, FULL_EVERY)
    try:
        app = create_app(process_settings(), check=True)
        with listen(arguments.host, arguments.port) as listener:
            host, port = listener.getsockname()[:2]
            print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
            # uvicorn raises the signal again after its shutdown; ending in order is exit code 0.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: None)
            say_who(process="api", host=host_name())
            _Server(configured(app), app).run(sockets=[listener])
    except (OperationError, StoreError) as error:
        print(f"rooftile: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
