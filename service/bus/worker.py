"""How does a Loop become the main of a worker process, with or without a broker?"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from service.bus.app import make_celery
from service.bus.broker import warn_of_eviction
from service.bus.child import leave_at_last
from service.bus.hostgate import HostGate, interrupt_wait
from service.bus.loop import Loop
from service.bus.names import Kind, task_of
from service.bus.vigil import VIGIL
from service.errors import OperationError
from service.settings import Settings

# A loop that is in the middle of a step gets this long before the process ends under it. The claim it
# held runs out or is given back by the reaper.
STOP_S = 5.0


def run_loop(loop: Loop, settings: Settings, queues: Sequence[str]) -> None:
    """Run `loop` until SIGTERM or SIGINT. Call from the main thread, last in a worker's main.

    Embedded: the loop runs here and sweeps. Cluster: Celery listens here on `queues` (bus.names.queue_of)
    and each message rings the loop, which works in a thread of its own. Loops that do not measure keep
    still while somebody on this host does.
    """
    if not any(queue.startswith(f"{Kind.MEASURE}.") for queue in queues):
        loop.quiet = HostGate().measuring
    VIGIL.watch(loop)
    try:
        if settings.embedded:
            _run_plain(loop)
        else:
            _run_celery(loop, settings, queues)
    finally:
        VIGIL.end()


def _on_signals(loop: Loop, leave: Callable[[], None]) -> None:
    """The first SIGTERM or SIGINT stops the loop and calls `leave`, the second ends the process at once."""
    told = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal told
        if told:
            os._exit(128 + number)
        told = True
        leave_at_last()
        loop.stop()
        leave()

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop)


def _run_plain(loop: Loop) -> None:
    _on_signals(loop, interrupt_wait)
    loop.run()


def _run_celery(loop: Loop, settings: Settings, queues: Sequence[str]) -> None:
    from celery.exceptions import SecurityWarning, WorkerShutdown

    # Celery warns root of pickle; we accept JSON only. In a container root may well be the user.
    warnings.simplefilter("ignore", SecurityWarning)
    app: Any = make_celery(settings)

    def heard(*_args: object, **_kwargs: object) -> None:
        loop.ring()

    for kind in Kind:
        app.task(heard, name=task_of(kind))
    VIGIL.vital(loop.start())
    ended = threading.Event()

    left = threading.Event()

    def leave() -> None:
        # Wherever Celery is: it may be waiting for a broker that is away, and looks at no flag meanwhile. A
        # message that it holds is only a bell. Once: the second would hit it in its own shutdown.
        if not left.is_set():
            left.set()
            raise WorkerShutdown(0)

    def stop_worker() -> None:
        # A loop that was stopped from inside takes Celery with it.
        loop.wait_stopped()
        if not ended.is_set():
            signal.raise_signal(signal.SIGUSR1)

    threading.Thread(target=stop_worker, name="loop-watch", daemon=True).start()
    threading.Thread(
        target=warn_of_eviction, args=(str(settings.broker_url),), name="eviction", daemon=True
    ).start()

    # solo: the task is one line, and prefork children may not have children of their own (CE-25), nor
    # leave orphans behind a time limit (CE-26). Liveness is our own heartbeat row, not Celery's (CE-13).
    class Worker(app.Worker):  # type: ignore[misc]
        def install_platform_tweaks(self, _worker: object) -> None:
            """Celery would take the signals. Ours stop the loop at once, not after Celery has ended."""
            _on_signals(loop, leave)
            signal.signal(signal.SIGUSR1, lambda *_: leave())

    worker = Worker(
        pool="solo",
        concurrency=1,
        queues=list(queues),
        hostname=f"{loop.name}@%h",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )
    try:
        worker.start()
    finally:
        ended.set()
        loop.stop()
        loop.join(STOP_S)
    if worker.exitcode:  # Celery has logged why, and only says so here
        raise OperationError(f"Celery ended with {worker.exitcode}: this worker heard no bell any more.")
