"""How do the worker, the measuring process and the candidates' processes talk? JSON lines over pipes."""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """`value` as JSON that every reader takes: no NaN, no infinity, no numpy numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        return plain(value.item())
    return str(value)


def send(descriptor: int, message: Mapping[str, Any]) -> None:
    """Write one line, whole."""
    data = (json.dumps(plain(message), separators=(",", ":"), allow_nan=False) + "\n").encode()
    while data:
        data = data[os.write(descriptor, data) :]


class LineReader:
    """Lines from a descriptor, with a deadline. Never blocks longer than asked."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.closed = False
        self._buffer = b""

    def pop(self) -> str | None:
        """A whole line that is already here, without its end."""
        line, found, rest = self._buffer.partition(b"\n")
        if not found:
            return None
        self._buffer = rest
        return line.decode(errors="replace")

    def feed(self) -> None:
        """Read what is there; call when the descriptor is readable."""
        data = os.read(self.descriptor, 1 << 16)
        if data:
            self._buffer += data
        else:
            self.closed = True

    def wait(self, timeout_s: float) -> str | None:
        """The next line, or None after `timeout_s` or when the other side has closed."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self.pop()
            if line is not None or self.closed:
                return line
            left = deadline - time.monotonic()
            if left <= 0.0:
                return None
            ready, _, _ = select.select([self.descriptor], [], [], left)
            if ready:
                self.feed()
