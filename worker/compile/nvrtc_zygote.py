"""How does one NVRTC call run so that it can be killed? In a fork of this small process.

    python -I -S nvrtc_zygote.py LIBRARY DESCRIPTOR

Standard library only, so that nothing of a worker's weight is in it: it opens the library, forks once a
compile, and never calls NVRTC itself, so every fork starts from the same untouched state. A compile in a
process of its own would cost 0.03 CPU-seconds more of the 0.3 that one takes (Python's start, ctypes, the
loader with 140 MB of library); one that imports numpy or CuPy 0.1 to 0.4 more.

Messages on DESCRIPTOR (a SOCK_SEQPACKET socket), a line of JSON each:
    out  {"ready": true, "vm_bytes": B, "rss_bytes": B} or {"error": TEXT}, once
    in   {"limits": {...}} with four descriptors: the job's socket, request, result and output (memfds)
The job's socket gets one message when the compile has ended, {"status": ..., ...}. Whoever closes its other
end kills the compile; when DESCRIPTOR closes, or the parent is gone, everything dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
PARENT_LOOK_MS = 1000
STACK_BYTES = 64 << 20
"""NVRTC raises its own stack to the hard limit, which elsewhere may be none: deep nesting would eat the
memory of the machine. With a limit it crashes, the same on each machine."""
FAULT_EXIT = 70
"""The child's own fault, told on its output."""
MEMORY_EXIT = 71

Library = ctypes.CDLL


def compile_program(library: Library, request: dict) -> tuple[dict, bytes, bytes]:  # type: ignore[type-arg]
    """One NVRTC call: what it says (result, log), the cubin and the PTX (empty where there is none)."""
    program = ctypes.c_void_p()
    headers = request["headers"]
    texts = (ctypes.c_char_p * len(headers))(*(text.encode() for _, text in headers))
    names = (ctypes.c_char_p * len(headers))(*(name.encode() for name, _ in headers))
    created = library.nvrtcCreateProgram(
        ctypes.byref(program),
        request["source"].encode(),
        request["name"].encode(),
        len(headers),
        texts,
        names,
    )
    if created != 0:
        return {"result": created, "log": "nvrtcCreateProgram failed"}, b"", b""
    options = [option.encode() for option in request["options"]]
    result = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = _fetch(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
    said = {"result": result, "log": log.rstrip(b"\0").decode(errors="replace")}
    if result != 0:
        return said, b"", b""
    cubin = _fetch(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    ptx = _fetch(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
    return said, cubin, ptx.rstrip(b"\0")


def _fetch(size_of, get, program: ctypes.c_void_p) -> bytes:  # type: ignore[no-untyped-def]
    size = ctypes.c_size_t()
    if size_of(program, ctypes.byref(size)) != 0 or size.value == 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    return buffer.raw if get(program, buffer) == 0 else b""


def child(library: Library, parent: int, limits: dict, files: tuple[int, int, int]) -> None:  # type: ignore[type-arg]
    """Set the limits, compile, write the result; never returns."""
    request, result, output = files
    code = FAULT_EXIT
    try:
        os.setpgid(0, 0)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(FAULT_EXIT)
        data = json.loads(_read_all(request))
        cpu_s = limits["cpu_s"]
        _limit(resource.RLIMIT_CORE, 0, 0)
        _limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 2)
        _limit(resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"])
        _limit(resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES)
        _limit(resource.RLIMIT_AS, limits["memory_bytes"], limits["memory_bytes"])
        said, cubin, ptx = compile_program(library, data)
        head = json.dumps({**said, "cubin_bytes": len(cubin), "ptx_bytes": len(ptx)}).encode()
        with open(result, "wb", closefd=False) as file:
            file.write(head + b"\n" + cubin + ptx)
        code = 0
    except MemoryError:
        code = MEMORY_EXIT
    except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it was
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _limit(what: int, soft: int, hard: int) -> None:
    """Ours, or what this process was given where that is less: only root may raise a hard limit."""
    given = resource.getrlimit(what)[1]
    if given != resource.RLIM_INFINITY:
        soft, hard = min(soft, given), min(hard, given)
    resource.setrlimit(what, (soft, hard))


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


class Job:
    """One compile that runs."""

    def __init__(self, pid: int, talk: socket.socket, wall_s: float) -> None:
        self.pid = pid
        self.talk = talk
        self.started = time.monotonic()
        self.deadline = self.started + wall_s
        self.timed_out = False

    def kill(self) -> None:
        # The group first: it is there once the child has come as far as setpgid.
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except OSError:
                continue


def start(library: Library, control: socket.socket, jobs: dict[int, Job]) -> bool:
    """Take one job off the control socket and fork for it; False where the worker is gone."""
    message, descriptors, _flags, _address = socket.recv_fds(control, 4096, 4)
    if not message:
        return False
    talk, files = socket.socket(fileno=descriptors[0]), descriptors[1:]
    limits = json.loads(message)["limits"]
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        _say(talk, {"error": f"no new process: {error.strerror}"})
        talk.close()
        pid = -1
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGCHLD, signal.SIGXFSZ, signal.SIGPIPE):
            signal.signal(name, signal.SIG_DFL)
        control.close()
        talk.close()
        for job in jobs.values():
            job.talk.close()
        child(library, parent, limits, (files[0], files[1], files[2]))
    for descriptor in files:
        os.close(descriptor)
    if pid > 0:
        jobs[pid] = Job(pid, talk, limits["wall_s"])
    return True


def reap(jobs: dict[int, Job]) -> None:
    """Tell of every compile that has ended."""
    while jobs:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        job = jobs.pop(pid, None)
        if job is None:
            continue
        # Helpers it may have left behind go with it.
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        told = {
            "status": os.waitstatus_to_exitcode(status),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - job.started,
            "maxrss_bytes": usage.ru_maxrss << 10,
            "timed_out": job.timed_out,
        }
        _say(job.talk, told)
        job.talk.close()


def _say(talk: socket.socket, message: dict) -> None:  # type: ignore[type-arg]
    with contextlib.suppress(OSError):  # nobody may listen any more
        talk.send(json.dumps(message).encode())


def serve(library: Library, control: socket.socket) -> None:
    """Until the worker is gone."""
    jobs: dict[int, Job] = {}
    parent = os.getppid()
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        while os.getppid() == parent:
            poll = select.poll()
            poll.register(control, select.POLLIN)
            poll.register(woken, select.POLLIN)
            for job in jobs.values():
                poll.register(job.talk, 0)  # hang-up is always told
            nearest = min((job.deadline for job in jobs.values()), default=None)
            wait_ms = PARENT_LOOK_MS
            if nearest is not None:
                wait_ms = max(0, min(wait_ms, int((nearest - time.monotonic()) * 1000) + 1))
            for descriptor, events in poll.poll(wait_ms):
                if descriptor == woken:
                    os.read(woken, 4096)
                elif descriptor == control.fileno():
                    if not start(library, control, jobs):
                        return
                elif events & (select.POLLHUP | select.POLLERR):
                    for job in jobs.values():
                        if job.talk.fileno() == descriptor:
                            job.kill()
            reap(jobs)
            now = time.monotonic()
            for job in jobs.values():
                if now >= job.deadline and not job.timed_out:
                    job.timed_out = True
                    job.kill()
    finally:
        for job in jobs.values():
            job.kill()


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[2]))
    try:
        library = ctypes.CDLL(sys.argv[1])
        library.nvrtcGetCUBINSize  # noqa: B018 - an NVRTC before 11.1 has no cubin to give
    except (OSError, AttributeError) as error:
        _say(control, {"error": str(error)})
        return 1
    with open("/proc/self/statm") as file:
        pages = file.read().split()
    page = resource.getpagesize()
    _say(control, {"ready": True, "vm_bytes": int(pages[0]) * page, "rss_bytes": int(pages[1]) * page})
    serve(library, control)
    return 0


if __name__ == "__main__":
    sys.exit(main())
