"""How does a worker ask its NVRTC processes for a compile, and what does it learn of the end?"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.errors import CompilerMissingError
from worker.compile.sandbox import Limits
from worker.endings import how_ended, killed_from_outside

_ZYGOTE = Path(__file__).with_name("nvrtc_zygote.py")
_READY_S = 60.0
# The zygote keeps the limit; this is for the case that the zygote itself stands still.
_GRACE_S = 5.0


class HostLostError(Exception):
    """The process that forks for each compile died, or stood still and was killed."""


@dataclass(frozen=True)
class Request:
    """One NVRTC call. `headers` are (name, text); names are as the texts include them."""

    name: str
    source: str
    headers: tuple[tuple[str, str], ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a call ended. `result` is NVRTC's own code (0: success), None where it did not come so far."""

    result: int | None
    log: str
    cubin: bytes = field(repr=False)
    ptx: bytes = field(repr=False)
    output: str
    """What library and process printed."""
    status: int
    """Exit code of the process, or minus the signal that ended it."""
    timed_out: bool
    cpu_s: float
    wall_s: float
    peak_bytes: int
    """Peak of the address space, near enough to say whether the limit was what ended it."""


class NvrtcHost:
    """One library, one lean process that has it open, any number of compiles at once. Thread-safe."""

    def __init__(self, library: str) -> None:
        self.library = library
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._vm_bytes = 0
        self._rss_bytes = 0
        self.children_cpu_s = 0.0
        """CPU-seconds of all compiles that have ended, whatever came of them."""

    def own_cpu_s(self) -> float:
        """CPU-seconds of the process that forks, since it was started; 0 while there is none."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    @property
    def pid(self) -> int | None:
        """The process that forks; None before the first compile."""
        return None if self._process is None else self._process.pid

    def run(self, request: Request, limits: Limits) -> Outcome:
        """One compile within `limits`. Raises CompilerMissingError where the library cannot be loaded, and
        HostLostError where the processes behind it died twice."""
        for last in (False, True):
            try:
                return self._run(request, limits)
            except HostLostError:
                # Killed by somebody else, as the kernel does when memory is short: once more, afresh.
                if last:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End the process; a compile that runs is killed with it."""
        with self._lock:
            self._close()

    def _run(self, request: Request, limits: Limits) -> Outcome:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, _memfd("request") as asked, _memfd("result") as result, _memfd("output") as output:
            with theirs:
                os.write(asked, _encode(request))
                told = json.dumps({"limits": _limits(limits)}).encode()
                process = self._send(told, [theirs.fileno(), asked, result, output])
            ours.settimeout(limits.wall_s + _GRACE_S)
            try:
                answer = ours.recv(4096)
            except TimeoutError:
                answer = b""
            except OSError as error:
                raise HostLostError(str(error)) from None
            if not answer:
                self._lose(process)
                raise HostLostError("the process that starts NVRTC died or stood still")
            end = json.loads(answer)
            if "error" in end:
                raise HostLostError(end["error"])
            with self._lock:
                self.children_cpu_s += end["cpu_s"]
            said: dict[str, Any] = {}
            cubin = ptx = b""
            if end["status"] == 0:
                said, cubin, ptx = _decode(_read(result))
            return Outcome(
                result=said.get("result"),
                log=said.get("log", ""),
                cubin=cubin,
                ptx=ptx,
                output=_read(output).decode(errors="replace"),
                status=end["status"],
                timed_out=end["timed_out"],
                cpu_s=end["cpu_s"],
                wall_s=end["wall_s"],
                # What the library maps is there from the start, resident or not.
                peak_bytes=self._vm_bytes + max(0, end["maxrss_bytes"] - self._rss_bytes),
            )

    def _send(self, message: bytes, descriptors: list[int]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._close()
                self._open()
            assert self._control is not None
            assert self._process is not None
            try:
                socket.send_fds(self._control, [message], descriptors)
            except OSError as error:
                self._close()
                raise HostLostError(str(error)) from None
            return self._process

    def _lose(self, process: subprocess.Popen[bytes]) -> None:
        """End a process that did not answer, unless another thread has replaced it already."""
        with self._lock:
            if self._process is process:
                self._close()

    def _open(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_ZYGOTE), self.library, str(theirs.fileno())],
                cwd="/",
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._process, self._control = process, ours
        ours.settimeout(_READY_S)
        hello: dict[str, Any]
        try:
            told = ours.recv(4096)
        except TimeoutError:
            hello = {"error": f"it was not ready within {_READY_S:g} s"}
        else:
            hello = json.loads(told) if told else self._early_end(process)
        if "error" in hello:
            self._close()
            raise CompilerMissingError(f"NVRTC ({self.library}) cannot be loaded: {hello['error']}.")
        ours.settimeout(None)
        self._vm_bytes, self._rss_bytes = hello["vm_bytes"], hello["rss_bytes"]

    def _early_end(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Why a process said nothing. Raises HostLostError where somebody else ended it: that is no fault of
        the library."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)  # its socket is closed, so it is about to end
        code = process.poll()
        if code is not None and killed_from_outside(code):
            self._close()
            raise HostLostError(f"the process that starts NVRTC {how_ended(code)} at its start")
        return {"error": "its process fell silent" if code is None else f"its process {how_ended(code)}"}

    def _close(self) -> None:
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            control.close()
        if process is not None:
            # It ends by itself when the socket closes; its compiles die with it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.kill()
            process.wait()


_hosts: dict[tuple[int, str], NvrtcHost] = {}
_hosts_lock = threading.Lock()


def host_of(library: str) -> NvrtcHost:
    """The host of this process for a library. A fork of a worker gets one of its own."""
    key = (os.getpid(), library)
    with _hosts_lock:
        host = _hosts.get(key)
        if host is None:
            host = _hosts[key] = NvrtcHost(library)
        return host


@atexit.register
def _close_all() -> None:
    for (pid, _library), host in list(_hosts.items()):
        if pid == os.getpid():
            host.close()


def _environment() -> dict[str, str]:
    """Nothing of the worker's environment is in the bytes; LD_LIBRARY_PATH finds a library of the system.

    Huge pages for the heap: 2,600 page faults a compile instead of 7,400, which is 5 % of its time. A C
    library that does not know the setting ignores it.
    """
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {**kept, "LC_ALL": "C", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def _limits(limits: Limits) -> dict[str, float]:
    return {
        "cpu_s": limits.cpu_s,
        "wall_s": limits.wall_s,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
    }


def _encode(request: Request) -> bytes:
    return json.dumps(
        {
            "name": request.name,
            "source": request.source,
            "headers": [list(pair) for pair in request.headers],
            "options": list(request.options),
        }
    ).encode()


def _decode(data: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    head, _, rest = data.partition(b"\n")
    said = json.loads(head)
    cubin_bytes = said["cubin_bytes"]
    return said, rest[:cubin_bytes], rest[cubin_bytes:]


@contextlib.contextmanager
def _memfd(name: str) -> Iterator[int]:
    """A file in memory: on a full disk a compile still ends, and still can say how."""
    descriptor = os.memfd_create(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
