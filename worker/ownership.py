"""How does one process own a device: a lock file on the host, and a lease row in the database?"""

from __future__ import annotations

import fcntl
import os
import time

import structlog

from service.paths import device_lock_path, open_lock_file
from service.store import leases, races, trials
from service.store.database import Database
from worker.errors import DeviceBusyError
from worker.keeper import DEVICE_LEASE_S, Keeper

_log = structlog.get_logger("rooftile.measure")

# A predecessor that was killed is gone within milliseconds; one that stops in order needs its last trial.
WAIT_S = 15.0


class DeviceOwnership:
    """Held until the process ends or `close()`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def own_device(
    database: Database, keeper: Keeper, device_key: str, *, wait_s: float = WAIT_S, uuid: str | None = None
) -> DeviceOwnership:
    """Take the device; a GPU by its UUID (the keeper's too), for a host may have two of one key. Raises
    DeviceBusyError with one sentence where somebody else has it."""
    ownership = _lock_host(uuid or device_key, wait_s)
    try:
        _take_lease(database, keeper, device_key, wait_s)
    except BaseException:
        ownership.close()
        raise
    return ownership


def _lock_host(device_key: str, wait_s: float) -> DeviceOwnership:
    path = device_lock_path(device_key)
    descriptor = open_lock_file(path)
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return DeviceOwnership(descriptor)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise DeviceBusyError(
                    f"Another process on this host measures on {device_key} (lock {path}); only one may."
                ) from None
            if not told:
                told = True
                _log.info("waiting for the device's other owner to end", device=device_key)
            time.sleep(0.1)


def _take_lease(database: Database, keeper: Keeper, device_key: str, wait_s: float) -> None:
    name = keeper.device_lease
    deadline = time.monotonic() + wait_s
    while True:
        taken = database.run(lambda s: leases.acquire(s, name, keeper.owner, DEVICE_LEASE_S))
        if taken is not None:
            return
        with database.read() as session:
            held = leases.holder(session, name)
        if held is not None and held.owner.startswith(f"{keeper.kind}@{keeper.host}/"):
            # We hold this host's lock, so that owner is dead: its work goes back at once.
            dead = held.owner

            def bury(session: object, dead: str = dead) -> None:
                trials.expire(session, owner=dead)  # type: ignore[arg-type]
                races.expire(session, owner=dead)  # type: ignore[arg-type]
                leases.release_all(session, dead)  # type: ignore[arg-type]

            database.run(bury)
            _log.info("took over from a worker that died", device=device_key, dead=dead)
            continue
        if time.monotonic() >= deadline:
            who = held.owner.split("@")[-1].split("/")[0] if held is not None else "another host"
            raise DeviceBusyError(f"A worker on {who} owns {device_key}; only one may.")
        time.sleep(0.5)
