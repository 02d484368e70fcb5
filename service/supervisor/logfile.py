"""Where does the output of a child go, and how large may it grow?"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 4 * 2**20
KEPT = 2


class LogFile:
    """Appends lines to `path`; at 4 MiB the file becomes `.1` (and that `.2`). Remembers the last lines.

    A log that cannot be written (full disk) is not worth stopping a service for: the line is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._bytes = 0
        self.last_lines: deque[str] = deque(maxlen=20)

    def write(self, line: bytes) -> None:
        self.last_lines.append(line.decode(errors="replace").rstrip())
        with contextlib.suppress(OSError):
            if self._file is None:
                self._open()
            elif self._bytes > MOST_BYTES:
                self._rotate()
            assert self._file is not None
            self._file.write(line)
            self._file.flush()
            self._bytes += len(line)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "ab")
        self._bytes = os.fstat(descriptor).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(KEPT, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._open()
