"""How do tests reach an app over a real socket, and send bytes that no HTTP library would?"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from service.api.__main__ import configured, listen


@contextmanager
def served(app: FastAPI) -> Iterator[int]:
    """The app on a port of this machine, in a thread, behind the server that `serve` uses; the port."""
    with listen("127.0.0.1", 0) as listener:
        port = int(listener.getsockname()[1])
        server = uvicorn.Server(configured(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def exchange(port: int, request: bytes, answers: int = 1, timeout_s: float = 10.0) -> bytes:
    """What comes back for these bytes: until the server closes, or has sent so many answers and then nothing
    more for a moment."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        got = b""
        try:
            connection.sendall(request)
            while part := connection.recv(65536):
                got += part
                connection.settimeout(0.05 if _whole(got) >= answers else timeout_s)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        return got


def _whole(got: bytes) -> int:
    """How many answers are there from head to end."""
    count = 0
    while True:
        head, separator, rest = got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        size = int(length[1]) if length else 0
        if not separator or len(rest) < size:
            return count
        count, got = count + 1, rest[size:]


def statuses(answer: bytes) -> list[int]:
    """The status of each answer in a stream of bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
