"""How does the measuring process start a candidate's process, watch it, and say why it died?"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.bus import die_with_parent
from worker.measure.candidate import Tell, failed, failure_of
from worker.measure.channel import LineReader, send
from worker.measure.oom import oom_kills
from worker.verify.arena import Region, describe_fault

# A process that is told to stop, or closes its pipe, ends within this.
_LEAVE_S = 1.0


class Cancelled(Exception):  # the parent asked for it
    """The worker wants no answer any more."""


class Died(Exception):  # an outcome
    """The process ended without an answer; `outcome` says how."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        super().__init__(outcome["reason"])
        self.outcome = outcome


class Inbox:
    """What the worker says meanwhile: only whether it still wants an answer."""

    def __init__(self, reader: LineReader) -> None:
        self.reader = reader

    def cancelled(self) -> bool:
        """Look without waiting. A closed pipe means the worker is gone."""
        ready, _, _ = select.select([self.reader.descriptor], [], [], 0)
        if ready:
            self.reader.feed()
        line = self.reader.pop()
        return self.reader.closed or (line is not None and json.loads(line).get("op") == "cancel")


class CandidateProcess:
    """A process of its own group that answers in JSON lines, with a deadline for each step it announces."""

    def __init__(self, pid: int, answers: int, commands: int | None, inbox: Inbox) -> None:
        self.pid = pid
        self._reader = LineReader(answers)
        self._commands = commands
        self._inbox = inbox
        self._step: dict[str, Any] = {"phase": "start"}
        self._regions: list[Region] = []
        self._limit_s = 15.0
        self._deadline = time.monotonic() + self._limit_s
        self._fault: str | None = None
        self._ended = False
        self._oom_kills = oom_kills()

    def ask(self, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        if self._commands is None:
            raise RuntimeError("this process takes no commands")
        self._set_limit(limit_s)
        try:
            send(self._commands, message)
        except BrokenPipeError:
            raise Died(self._collect()) from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer. Raises Died or Cancelled; in both cases the process is gone."""
        while True:
            line = self._reader.pop()
            if line is not None:
                message = self._take(line)
                if message is not None:
                    return message
                continue
            if self._reader.closed:
                raise Died(self._collect())
            left = self._deadline - time.monotonic()
            if left <= 0.0:
                self.kill()
                raise Died(self._hang())
            # A large wait costs nothing: both pipes wake us.
            ready, _, _ = select.select(
                [self._reader.descriptor, self._inbox.reader.descriptor], [], [], left
            )
            if self._inbox.reader.descriptor in ready and self._inbox.cancelled():
                self.kill()
                raise Cancelled
            if self._reader.descriptor in ready:
                self._reader.feed()

    def _take(self, line: str) -> dict[str, Any] | None:
        if line.startswith("fault "):
            self._fault = line
            return None
        message: dict[str, Any] = json.loads(line)
        if "phase" not in message:
            return message
        self._regions = [Region.from_json(region) for region in message.pop("regions", [])] or self._regions
        self._set_limit(float(message.pop("limit_s")))
        self._step = message
        return None

    def _set_limit(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s

    def kill(self) -> int:
        """End the whole group, now; the wait status."""
        if self._ended:
            return 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._reap()

    def _reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self._ended = True
        os.close(self._reader.descriptor)
        if self._commands is not None:
            os.close(self._commands)
            self._commands = None
        return status

    def close(self) -> None:
        """Let it end by itself; kill it when it does not."""
        if self._ended:
            return
        if self._commands is not None:
            os.close(self._commands)
            self._commands = None
        end = time.monotonic() + _LEAVE_S
        while time.monotonic() < end:
            pid, _ = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = True
                os.close(self._reader.descriptor)
                return
            time.sleep(0.001)
        self.kill()

    def _hang(self) -> dict[str, Any]:
        return failed(
            "hang",
            {
                "message": f"did not end within {self._limit_s:.3g} s and was killed",
                "limit_s": self._limit_s,
                "step": self._step,
            },
        )

    def _collect(self) -> dict[str, Any]:
        """The pipe closed without an answer: why?"""
        # What it left behind in its group (it may have forked) goes with it. Before it is waited for: until
        # then its number is its own, and how it ended is settled.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._why(self._reap())

    def _why(self, status: int) -> dict[str, Any]:
        evidence: dict[str, Any] = {"step": self._step}
        if not os.WIFSIGNALED(status):
            code = os.waitstatus_to_exitcode(status)
            return failed(
                "crash", {"message": f"its process ended with status {code}", "status": code, **evidence}
            )
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        evidence |= {"signal": name}
        if self._fault is not None:
            _, _number, address, write, trap = self._fault.split()
            where = (
                describe_fault(self._regions, int(address, 16), write == "1")
                if number != signal.SIGILL
                else None
            )
            evidence |= {
                "address": f"0x{address}",
                "access": "write" if write == "1" else "read",
                "trap": int(trap),
            }
            if where is not None:
                return failed("out_of_bounds", {**evidence, **where})
        if number == signal.SIGKILL and oom_kills() > self._oom_kills:
            return failed("out_of_memory", {"message": "the kernel killed it for want of memory", **evidence})
        return failed("crash", {"message": f"its process died of {name}", **evidence})


class FaultGuard:
    """kernels/x86/faultguard.c in this process; without its artifact faults have a signal but no address."""

    def __init__(self, path: Path | None) -> None:
        self._install: Any = None
        if path is not None:
            self._install = ctypes.CDLL(str(path)).rt_guard_install

    def install(self, descriptor: int) -> None:
        if self._install is not None:
            self._install(descriptor)


def fork(
    work: Callable[[Tell, LineReader], Mapping[str, Any] | None], guard: FaultGuard, inbox: Inbox
) -> CandidateProcess:
    """Run `work(tell, commands)` in a process of its own; what it returns is its (last) answer."""
    answers_read, answers_write = os.pipe()
    commands_read, commands_write = os.pipe()
    parent = os.getpid()
    # Pages that the collector touches would be copied for nothing.
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(answers_write)
        os.close(commands_read)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        return CandidateProcess(pid, answers_read, commands_write, inbox)
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        lonely({2, answers_write, commands_read})
        guard.install(answers_write)

        def tell(message: Mapping[str, Any]) -> None:
            send(answers_write, message)

        try:
            last = work(tell, LineReader(commands_read))
        except Exception as error:  # noqa: BLE001 - the other side is told
            last = failure_of(error)
        if last is not None:
            tell(last)
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run here
        os._exit(70)
    os._exit(0)


def lonely(keep: set[int]) -> None:
    """Take from this process what would let a candidate disturb others: their pipes, cores, memory."""
    # Ends of other pipes too: held here, they would never read as closed elsewhere.
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry.name))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in {0, 1} - {null}:
        os.dup2(null, descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        # Under pressure the candidate goes first, not the worker or the database.
        Path("/proc/self/oom_score_adj").write_text("900")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
