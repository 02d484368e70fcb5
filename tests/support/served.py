"""How do tests reach an app over a real socket, and send bytes that no HTTP library would?"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from service.api.__main__ import listen


@contextmanager
def served(app: FastAPI) -> Iterator[int]:
    """The app on a port of this machine, in a thread, behind the server that `serve` uses; the port."""
    with listen("127.0.0.1", 0) as listener:
        port = int(listener.getsockname()[1])
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def exchange(port: int, request: bytes, timeout_s: float = 10.0) -> bytes:
    """All that comes back for these bytes until the server closes, or is silent for half a second."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        answer = b""
        try:
            connection.sendall(request)
            while part := connection.recv(65536):
                answer += part
                connection.settimeout(0.5)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        return answer


def statuses(answer: bytes) -> list[int]:
    """The status of each answer in a stream of bytes."""
    lines = [line for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return [int(line.split(b" ")[1]) for line in lines]
