"""How does one process own a device: a lock file on the host, and a lease row in the database?"""

from __future__ import annotations

import fcntl
import os
import time

import structlog
from sqlalchemy.orm import Session

from service.bus.lockholder import lock_holder
from service.paths import device_lock_path, open_lock_file
from service.periods import device_lease_s, heartbeat_s
from service.store import leases, races, trials
from service.store.database import Database
from worker.errors import DeviceBusyError
from worker.keeper import Keeper, spare_of

_log = structlog.get_logger("rooftile.measure")

# A predecessor that was killed is gone within milliseconds; one that stops in order needs some seconds.
TELL_AFTER_S = 4.0
TELL_MOST_S = 600.0
# Looks at the lock: soon at first, then seldom, for on a CPU each of them disturbs who measures there.
PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 2.0


class DeviceOwnership:
    """Held until the process ends or `close()`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def wait_for_device(
    database: Database, keeper: Keeper, device_key: str, *, uuid: str | None = None
) -> DeviceOwnership:
    """`own_device`, for as long as somebody else has it. Meanwhile the worker's row says that it waits and
    for whom, and so does its log, less and less often. From then on the keeper reports and keeps the lease:
    to get ready (its tools, the roof) may take longer than that lasts. No job's seconds run meanwhile: the
    device counts as connected from the keeper's next start on."""
    began = time.monotonic()
    pause_s, tell_at, tell_s, report_at = PAUSE_FIRST_S, began + TELL_AFTER_S, TELL_AFTER_S, began
    while True:
        try:
            ownership = own_device(database, keeper, device_key, uuid=uuid)
        except DeviceBusyError as busy:
            now = time.monotonic()
            if now >= report_at:
                keeper.waits(str(busy))
                report_at = now + heartbeat_s()
            if now >= tell_at:
                # An error, so that a supervisor shows it: until then nothing is measured.
                _log.error(f"waiting for the device, {now - began:.0f} s by now: {busy}")
                tell_s = min(TELL_MOST_S, 2 * tell_s)
                tell_at = now + tell_s
            time.sleep(pause_s)
            pause_s = min(PAUSE_MOST_S, 1.5 * pause_s)
        else:
            if tell_s > TELL_AFTER_S:
                _log.error(f"the device is free after {time.monotonic() - began:.0f} s")
            try:
                keeper.start("It is getting ready: tools, and how fast the device can be.")
            except BaseException:
                ownership.close()
                raise
            return ownership


def own_device(
    database: Database, keeper: Keeper, device_key: str, *, uuid: str | None = None
) -> DeviceOwnership:
    """Take the device; a GPU by its UUID (the keeper's too), for a host may have two of one key. Raises
    DeviceBusyError with one sentence where somebody else has it."""
    ownership = _lock_host(uuid or device_key)
    try:
        _take_lease(database, keeper, device_key)
    except BaseException:
        ownership.close()
        raise
    return ownership


def _lock_host(device_key: str) -> DeviceOwnership:
    path = device_lock_path(device_key)
    descriptor = open_lock_file(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        who = lock_holder(path) or "another process"
        raise DeviceBusyError(
            f"{who[0].upper()}{who[1:]} of this host measures on {device_key} (lock {path}); only one may."
        ) from None
    return DeviceOwnership(descriptor)


def _take_lease(database: Database, keeper: Keeper, device_key: str) -> None:
    name = keeper.device_lease
    while database.run(lambda s: leases.acquire(s, name, keeper.owner, device_lease_s())) is None:
        with database.read() as session:
            held = leases.holder(session, name)
        if held is None:  # it ran out just now
            continue
        if not held.owner.startswith(keeper.here):
            raise DeviceBusyError(spare_of(device_key, held.owner))
        # We hold this host's lock, so that owner is dead: its work goes back at once.
        dead = held.owner

        def bury(session: Session, dead: str = dead) -> None:
            trials.expire(session, owner=dead)
            races.expire(session, owner=dead)
            leases.release_all(session, dead)

        database.run(bury)
        _log.info("took over from a worker that died", device=device_key, dead=dead)
