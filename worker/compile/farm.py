"""How are many kernels compiled at once without locking the machine up?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.store.enums import TrialReason
from worker.compile.artifact import Artifact
from worker.compile.capacity import compile_slots
from worker.errors import CompileFailure

K = TypeVar("K")

# What may have been the fault of the other compiles beside it (AT-14, AT-80).
_RETRY_ALONE = (TrialReason.COMPILE_TIMEOUT, TrialReason.COMPILE_MEMORY)


@dataclass(frozen=True)
class Order(Generic[K]):
    """One compile: who wants it, and the call that does it."""

    key: K
    build: Callable[[], Artifact]


def compile_all(
    orders: Sequence[Order[K]], *, slots: int | None = None, stop: threading.Event | None = None
) -> Iterator[tuple[K, Artifact | Exception]]:
    """Yield each outcome as it comes. A timeout or want of memory beside other compiles is tried again once,
    alone, and so is a compile that somebody else ended.

    What is not a CompileFailure (no compiler, disk full) is handed out like one: the caller decides.
    With `stop` set, orders that have not begun are dropped.
    """
    if not orders:
        return
    again: list[Order[K]] = []
    with ThreadPoolExecutor(slots or compile_slots(), thread_name_prefix="compile") as pool:
        running: dict[Future[Artifact], Order[K]] = {pool.submit(order.build): order for order in orders}
        try:
            while running:
                done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    order = running.pop(future)
                    outcome = _outcome(future)
                    if isinstance(outcome, CompileFailure) and _worth_another(outcome, len(orders)):
                        again.append(order)
                    else:
                        yield order.key, outcome
                if stop is not None and stop.is_set():
                    for future in list(running):
                        if future.cancel():
                            del running[future]
        finally:
            for future in running:
                future.cancel()
    for order in again:
        if stop is not None and stop.is_set():
            return
        try:
            yield order.key, order.build()
        except Exception as error:  # noqa: BLE001 - handed to the caller as the outcome
            yield order.key, error


def _worth_another(failure: CompileFailure, orders: int) -> bool:
    return failure.killed or (failure.reason in _RETRY_ALONE and orders > 1)


def _outcome(future: Future[Artifact]) -> Artifact | Exception:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, Exception):
        return error
    raise error
