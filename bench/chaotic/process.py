"""What is one process of the cluster under test, and how is it started again and again?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers.spawn import spawn
from service.bus.vigil import STATUS as VIGIL_STATUS
from service.host import VARIABLE

RESTART_S = 0.3
OURS = "SIGKILL of ours"
STARVED_S = 20.0
"""What memory that was short has done may show only so long after."""


@dataclass(frozen=True)
class End:
    """Of a process that nobody told to end."""

    status: int
    why: str | None
    """None: it should not have ended so."""
    said: str
    """Last of all, in its log."""
    at_s: float
    """When that was seen, monotonic."""


def explain(status: int, said: str, *, killed: bool, starved: bool) -> str | None:
    """Why a process may have ended so in a storm; None: it may not."""
    if status == -signal.SIGKILL:
        return OURS if killed else None
    if starved and status != 0:
        # The allocators of C libraries end the process, or write where nothing is: no Python can be asked.
        return "memory starved by us"
    lines = [line for line in said.splitlines() if line.strip()]
    if status == 1 and lines and lines[-1].startswith("rooftile: "):
        return lines[-1]
    if status == VIGIL_STATUS:
        return "its watch over its own threads ended it"
    return None


@dataclass
class Process:
    """A member of the cluster: started again when it ends, until `rest`, as a container manager does."""

    name: str
    kind: str
    """api, search, compile, emulate or measure."""
    command: Sequence[str]
    environment: Mapping[str, str]
    home: Path
    """Its ROOFTILE_HOME."""
    clock: Path | None
    """File that its clock is moved by; None where it cannot be."""
    log: Path
    starts: int = 0
    ends: list[End] = field(default_factory=list)
    """In order."""
    running: subprocess.Popen[bytes] | None = None
    resting: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    ended_at: float = 0.0
    killed: bool = False
    """By a SIGKILL of ours, since its last start."""
    starved_at: float = -1e9
    """When it last had too little memory, by a fault of ours."""

    @property
    def host(self) -> str:
        """The host that it takes itself for."""
        return self.environment[VARIABLE]

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        with self.lock:
            return None if self.running is None or self.running.poll() is not None else self.running.pid

    def start(self) -> None:
        with self.lock:
            self.resting = False
            with self.log.open("ab") as log:
                command = [sys.executable, "-m", *self.command]
                environment = dict(self.environment)
                self.running = spawn(command, env=environment, cwd=self.home, stdout=log, stderr=log)
            self.starts += 1
            self.killed = False

    def tend(self) -> None:
        """Start it again if it has ended a moment ago."""
        with self.lock:
            if self.running is None or (status := self.running.poll()) is None:
                return
            if not self.ended_at:
                starved = time.monotonic() - self.starved_at < STARVED_S
                said = self.said(600)
                why = explain(status, said, killed=self.killed, starved=starved)
                self.ended_at = time.monotonic()
                self.ends.append(End(status, why, said, self.ended_at))
            if self.resting or time.monotonic() - self.ended_at < RESTART_S:
                return
            self.ended_at = 0.0
            self.start()

    def signal(self, number: signal.Signals) -> bool:
        """False where it does not run."""
        with self.lock:
            pid = self.pid
            if pid is None:
                return False
            self.killed |= number == signal.SIGKILL
            os.kill(pid, number)
            return True

    def rest(self) -> None:
        """SIGTERM, and no new start."""
        with self.lock:
            self.resting = True
            self.signal(signal.SIGTERM)

    def rested(self, timeout_s: float) -> int:
        """The status it ends with; a process that does not end is killed and named by a TimeoutExpired."""
        assert self.running is not None
        try:
            return self.running.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
            raise

    def said(self, most: int = 3000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-most:] if self.log.exists() else ""


class Tender:
    """Keeps all processes running, from a thread of its own."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more starts."""
        for process in self._processes:
            with process.lock:
                process.resting = True

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for process in self._processes:
            process.start()
        while not self._stop.wait(0.05):
            for process in self._processes:
                process.tend()


def children_of(pid: int) -> list[int]:
    """All processes below `pid`, the nearest first."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, look = [], [pid]
    while look:
        below = parents.get(look.pop(0), [])
        found += below
        look += below
    return found


def processes_of(mark: str, homes: Sequence[Path]) -> list[int]:
    """Processes in whose environment `mark` stands or that work below one of `homes` (some are given an
    environment of their own), this one not among them."""
    inside = tuple(str(home) for home in homes)
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                marked = mark.encode() in (folder / "environ").read_bytes()
                if marked or str((folder / "cwd").readlink()).startswith(inside):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found
