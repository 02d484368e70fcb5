"""How is one child process started, watched and restarted?"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.bus.child import PARENT_VARIABLE
from service.errors import ChildGaveUpError
from service.supervisor.logfile import LogFile

# A child that lived this long was well: its next death starts the count anew.
WELL_S = 20.0
# One that ended by itself, with an exit code, found that it cannot work: on a loaded machine that takes a
# measure worker its start and a long look at its device.
WELL_BEFORE_EXIT_S = 60.0
QUICK_DEATHS = 5
BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 5.0
# After so many quick deaths, where the rest can go on without it: somebody may mend what ails it.
AILING_FIRST_S = 60.0
AILING_MOST_S = 600.0


@dataclass(frozen=True)
class ChildSpec:
    """What to start. `name` is the name of its log file. With `needed` nothing goes on without it."""

    name: str
    argv: tuple[str, ...]
    needed: bool = True


class Child:
    """One process in a session of its own, with everything it starts. Call every method from the main thread.

    The main thread because of PR_SET_PDEATHSIG: the kernel watches the thread that started the child.
    """

    def __init__(
        self,
        spec: ChildSpec,
        environment: Mapping[str, str],
        logs: Path,
        surface: Callable[[str, str], None],
    ) -> None:
        self.spec = spec
        self.restarts = 0
        self.ailment: str | None = None
        """Why it cannot live, while it is only tried again now and then."""
        self._environment = dict(environment)
        self._log_path = logs / f"{spec.name}.log"
        self._log = LogFile(self._log_path)
        self._surface = surface
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._started = 0.0
        self._quick_deaths = 0
        self._restart_at: float | None = None

    @property
    def pid(self) -> int | None:
        """The running process, None between a death and its restart."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        environment = {**self._environment, PARENT_VARIABLE: str(os.getpid())}
        self._process = subprocess.Popen(
            self.spec.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the supervisor; and the group can be killed whole
        )
        self._started = time.monotonic()
        self._restart_at = None
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), name=f"log-{self.spec.name}", daemon=True
        )
        self._reader.start()

    def poll(self) -> int | None:
        """Notice a death and restart when it is time. Returns the pid that died just now, if one did.

        A process that died young several times in a row ends everything where it is needed: ChildGaveUpError.
        Any other is started again after minutes, and `ailment` says why.
        """
        process = self._process
        if process is None:
            return None
        if self._restart_at is not None:
            if time.monotonic() >= self._restart_at:
                self.restarts += 1
                self.start()
            return None
        if process.poll() is None:
            if self.ailment is not None and time.monotonic() - self._started >= WELL_BEFORE_EXIT_S:
                self.ailment, self._quick_deaths = None, 0
                self._surface(self.spec.name, "is well again")
            return None
        self._kill_group(process.pid)  # what it started must not outlive it
        lived_s = time.monotonic() - self._started
        well_s = WELL_S if process.returncode < 0 else WELL_BEFORE_EXIT_S
        self._quick_deaths = self._quick_deaths + 1 if lived_s < well_s else 0
        if self._reader is not None:
            self._reader.join(1.0)
        beyond = self._quick_deaths - QUICK_DEATHS
        if beyond >= 0:
            self.ailment = self._obituary(process.returncode)
            if self.spec.needed:
                raise ChildGaveUpError(self.ailment)
            pause_s = min(AILING_MOST_S, AILING_FIRST_S * 2 ** min(beyond, 10))
            self._restart_at = time.monotonic() + pause_s
            self._surface(self.spec.name, f"{self.ailment} It is tried again in {pause_s:.0f} s.")
            return process.pid
        pause_s = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2 ** max(0, self._quick_deaths - 1))
        self._restart_at = time.monotonic() + pause_s
        last = self.last_words()
        words = f' Its last words: "{last}".' if last and process.returncode > 0 else ""
        self._surface(
            self.spec.name, f"ended ({_how(process.returncode)}) after {lived_s:.0f} s; restarting.{words}"
        )
        return process.pid

    def terminate(self) -> None:
        """Ask it to end."""
        self._restart_at = None
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    def wait(self, deadline: float) -> None:
        """Wait until `deadline` (monotonic), then kill it with everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        self._kill_group(process.pid)
        process.wait()
        if self._reader is not None:
            self._reader.join(1.0)
        self._log.close()

    def _kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._log.write(line)
                text = line.decode(errors="replace").rstrip()
                if (told := alarm(text)) is not None:
                    self._surface(self.spec.name, told)

    def last_words(self) -> str:
        """The last line it wrote."""
        return next((line.strip()[:200] for line in reversed(self._log.last_lines) if line.strip()), "")

    def _obituary(self, code: int) -> str:
        last = self.last_words()
        words = f' Its last words: "{last}".' if last else ""
        return (
            f"The {self.spec.name} process ended at once {self._quick_deaths} times in a row "
            f"({_how(code)}); its log is {self._log_path}.{words}"
        )


def alarm(line: str) -> str | None:
    """What a line of a log says that a person should see; None: nothing."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
        except ValueError:
            return None
        if not isinstance(entry, dict) or entry.get("level") not in ("error", "critical"):
            return None
        error = entry.get("error")
        return f"{entry.get('event')}: {error}" if error else str(entry.get("event"))
    if "[error" in line or "[critical" in line:
        return line.partition("]")[2].strip() or line
    return None


def _how(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
