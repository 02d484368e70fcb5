"""Which processes make up the embedded service, and what happens when one of them or all must end?"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from service.compilers import need_compiler
from service.errors import OperationError
from service.paths import Home, prepare_home
from service.settings import Settings
from service.store.database import Database
from service.store.errors import StoreError
from service.supervisor import setup
from service.supervisor.child import Child, ChildSpec
from service.supervisor.devices import Measured, local_devices
from service.supervisor.lock import HomeLock, Running

POLL_S = 0.1
# SIGTERM, then this long, then SIGKILL: a step that does not end by then is done again after the next start.
STOP_S = 3.0


def _print_line(name: str, text: str) -> None:
    print(f"rooftile: {name}: {text}", file=sys.stderr, flush=True)


class Supervisor:
    """Home lock, schema, token and children. Create, `start()` and `poll()` in the main thread only.

    `api` is (host, port), or None for a foreground `tune`, which needs nobody to answer HTTP. Without
    `workers` there is only the API: results can be looked at where nothing can be compiled. With `cuda_only`
    nothing will be compiled for CPUs, and a C compiler is not asked for.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        command: str,
        api: tuple[str, int] | None,
        devices: Sequence[str] | None = None,
        workers: bool = True,
        cuda_only: bool = False,
        surface: Callable[[str, str], None] = _print_line,
    ) -> None:
        self.settings = settings
        self.home: Home = prepare_home(settings.home)
        self.url: str | None = None
        self._measured = (
            local_devices() if devices is None else tuple(Measured.of_key(key) for key in devices)
        )
        self.devices: tuple[str, ...] = tuple(one.key for one in self._measured)
        self.children: list[Child] = []
        self._api = api
        self._workers = workers
        # A machine that only measures GPUs has NVRTC, and mostly no C compiler.
        gpus_only = bool(self.devices) and all(key.startswith("gpu-") for key in self.devices)
        self._without_c = cuda_only or gpus_only
        self._command = command
        self._surface = surface
        self._database = Database(settings.database_url, name="rooftile supervisor")
        self._lock = HomeLock(self.home)
        self._stop = threading.Event()
        self._starting = False
        self._described: tuple[str, ...] = ()

    def start(self) -> None:
        """Everything in order of what can go wrong; on any error nothing of it is left behind."""
        self._starting = True
        try:
            if not self._lock.held:
                self._lock.acquire(self._me())
            self._start()
        except BaseException:
            self._starting = False
            self.stop()
            raise
        self._starting = False

    def try_start(self) -> bool:
        """Like `start()`, but False when another supervisor holds the home."""
        if not self._lock.try_acquire(self._me()):
            return False
        self.start()
        return True

    def _start(self) -> None:
        if self._workers and not self._without_c:
            need_compiler()
        if self._api is not None:
            host, port = self._api
            port = setup.free_port(host, port)
            self._api = (host, port)
            self.url = f"http://{_in_url(host)}:{port}"
            self._lock.describe(self._me())
        token = setup.admin_token(self.home, self.settings.token_text)
        setup.prepare_database(self.home, self.settings.database_url, token)
        environment = self._environment()
        for spec in self._specs():
            self.children.append(Child(spec, environment, self.home.logs, self._surface))
        for child in self.children:
            child.start()

    def poll(self) -> None:
        """Look after the home and the children once. Raises HomeError when the home is gone, ChildGaveUpError
        when a child cannot be kept alive that nothing goes on without."""
        self._lock.check()
        for child in self.children:
            died = child.poll()
            if died is not None:
                self._give_back(died)
        ailments = self._ailments()
        if ailments != self._described:
            self._described = ailments
            try:
                self._lock.describe(self._me())
            except OperationError as error:  # as on a full disk; what is served is served without
                self._surface("supervisor", str(error))

    def _ailments(self) -> tuple[str, ...]:
        return tuple(child.ailment for child in self.children if child.ailment is not None)

    def _give_back(self, pid: int) -> None:
        """What a dead child held is free at once, instead of when its leases run out."""
        try:
            setup.forget_dead_workers(self._database, pid)
        except StoreError as error:
            self._surface("supervisor", str(error))  # the reaper does it later

    def run(self) -> None:
        """Look after the children until SIGINT, SIGTERM, SIGHUP or `request_stop()`; then stop them."""
        with self.stopping_on_signals():
            try:
                while not self._stop.wait(POLL_S):
                    self.poll()
            finally:
                self.stop()

    def request_stop(self) -> None:
        self._stop.set()

    @property
    def stop_requested(self) -> bool:
        return self._stop.is_set()

    @contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Signals set `stop_requested` instead of raising somewhere. Only a second one while `start()` waits,
        for the database it may be minutes, is a KeyboardInterrupt there."""

        def stop(_number: int, _frame: FrameType | None) -> None:
            if self._starting and self._stop.is_set():
                raise KeyboardInterrupt
            self._stop.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # Under nohup SIGHUP is ignored, and stays so.
        hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        wanted = [number for number in numbers if number != signal.SIGHUP or not hangup_ignored]
        before = {number: signal.signal(number, stop) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """End all children within seconds and let go of the home. May be called twice."""
        deadline = time.monotonic() + STOP_S
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait(deadline)
        self.children.clear()
        self._database.close()
        self._lock.release()

    def _me(self) -> Running:
        return Running(os.getpid(), self._command, self.settings.database_url, self.url, self._ailments())

    def _specs(self) -> Iterator[ChildSpec]:
        # Where there is an API, clients go on being served whatever becomes of the others; a `tune` in the
        # foreground has nothing to do without one of them.
        needed = self._api is None
        python = (sys.executable, "-m")
        if self._api is not None:
            host, port = self._api
            yield ChildSpec("api", (*python, "service.api", "--host", host, "--port", str(port)), needed=True)
        if not self._workers:
            return
        yield ChildSpec("search", (*python, "service.search"), needed)
        without_c = ("--without-c",) if self._without_c else ()
        yield ChildSpec("compile", (*python, "worker", "compile", *without_c), needed)
        yield ChildSpec("emulate", (*python, "worker", "emulate"), needed)
        for one in self._measured:
            name = f"measure-{one.key}" if self.devices.count(one.key) == 1 else f"measure-{one.asked_by}"
            yield ChildSpec(name, (*python, "worker", "measure", "--device", one.asked_by), needed)

    def _environment(self) -> dict[str, str]:
        # The admin token stays with us: workers run candidate kernels, and the API knows its hash.
        inherited = {name: value for name, value in os.environ.items() if name != "ROOFTILE_TOKEN"}
        return {
            **inherited,
            "ROOFTILE_HOME": str(self.home.root),
            "ROOFTILE_DATABASE_URL": self.settings.database_url,
            # `python -m worker` must mean ours, not a folder of that name where the user happens to stand.
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        }


def _in_url(host: str) -> str:
    """The host as a browser on this machine reaches it."""
    if host in ("0.0.0.0", ""):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host
