"""How does the database learn that a worker lives, and a worker that its claim is void?

One thread beside the work: it reports every 5 s, and while something is being worked on extends its lease
once a second. A claim that is not held any more (the job was cancelled, or the lease ran out while this
process was stopped) is told by `lost()`. Short work sees no traffic at all: a database that is busy beside a
measurement would disturb it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog
from sqlalchemy.orm import Session

from service.bus.logs import say_who
from service.bus.vigil import VIGIL
from service.host import boot_mark, host_name
from service.periods import device_lease_s, heartbeat_s, lease_s, renew_s
from service.store import emulation_claims, leases, races, trials, workers
from service.store.database import Database
from service.store.enums import WorkerKind, WorkerState
from service.store.errors import StoreError
from service.store.records import ClaimId
from service.version import told

_log = structlog.get_logger("rooftile.worker")


class Stopping(Protocol):
    """What tells a step that the process is to end."""

    @property
    def stopping(self) -> bool: ...


class Leased(Protocol):
    """Work that one worker does one at a time: races, runs in the emulator."""

    def renew(self, s: Session, claim_id: ClaimId, lease_s: float) -> bool: ...

    def release(self, s: Session, claim_id: ClaimId) -> bool: ...


class Keeper:
    """Heartbeat and leases of one worker process."""

    def __init__(
        self,
        database: Database,
        kind: WorkerKind,
        device_key: str | None = None,
        *,
        uuid: str | None = None,
    ) -> None:
        """`uuid` tells devices of one key apart."""
        self.host = host_name()
        self.kind = kind
        self.device_key = device_key
        self.device_lease = leases.device_lease(f"{device_key}/{uuid}" if uuid else device_key or "")
        self.here = f"{kind}@{self.host}/{boot_mark()}-"
        """How the owner of every worker of this kind begins that shares this host's locks."""
        self.owner = f"{self.here}{os.getpid()}-{os.urandom(3).hex()}"
        say_who(process=str(kind), worker=self.owner, host=self.host)
        self.data: dict[str, Any] = {}
        self._database = database
        self._lock = threading.Lock()
        self._claims: set[ClaimId] = set()
        self._single: tuple[Leased, ClaimId] | None = None
        self._lost: set[ClaimId] = set()
        self._renewed_at = time.monotonic()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False
        self._lacking: str | None = None
        self.device_lost = False

    # -- claims -----------------------------------------------------------------------------------------

    def hold(self, claims: Iterable[ClaimId]) -> None:
        """These trials are being worked on from now."""
        self._hold(claims=set(claims))

    def hold_more(self, claims: Iterable[ClaimId]) -> None:
        """These too, from now: claimed while others are still being worked on."""
        with self._lock:
            self._claims.update(claims)

    def hold_race(self, claim: ClaimId) -> None:
        """This race is being run from now."""
        self._hold(single=(races, claim))

    def hold_emulation(self, claim: ClaimId) -> None:
        """This schedule runs in the emulator from now. `lost` also tells that nobody wants it any more."""
        self._hold(single=(emulation_claims, claim))

    def _hold(self, claims: set[ClaimId] | None = None, single: tuple[Leased, ClaimId] | None = None) -> None:
        with self._lock:
            self._claims = claims or set()
            self._single = single
            self._lost.clear()
            self._renewed_at = time.monotonic()
        self._wake.set()

    def drop(self, claim: ClaimId) -> None:
        """This one is done."""
        with self._lock:
            self._claims.discard(claim)
            if self._single is not None and self._single[1] == claim:
                self._single = None

    def lost(self, claim: ClaimId) -> bool:
        """Whether work on it is in vain."""
        with self._lock:
            # No renewal got through for as long as the lease lasts: somebody else may have it by now.
            stale = time.monotonic() - self._renewed_at > lease_s()
            return claim in self._lost or stale

    def give_back(self) -> None:
        """Release what is held, unharmed: this process stops."""
        with self._lock:
            claims, single = sorted(self._claims), self._single
            self._claims, self._single = set(), None
        if claims:
            self._database.run(lambda s: trials.release(s, claims))
        if single is not None:
            kind, claim = single
            self._database.run(lambda s: kind.release(s, claim))

    def waits(self, for_what: str) -> None:
        """Report, before `start`, that this worker cannot begin yet, and why. It holds no lease."""
        data = {**self.data, **told(), "waits_for": for_what}
        me = (self.owner, self.kind, self.host, os.getpid(), self.device_key, WorkerState.WAITING, data)
        self._guarded(lambda: self._database.run(lambda s: workers.heartbeat(s, *me)))

    def lacks(self, what: str | None) -> None:
        """From now on this worker claims nothing for want of something (None: it has all again). Its row says
        so at once, and what it has, its device too, stays its own."""
        if (what is None) == (self._lacking is None):
            self._lacking = what
            return
        self._lacking = what
        if what is not None:
            # An error, so that a supervisor shows it.
            _log.error(f"nothing is claimed: {what}")
        else:
            _log.error("claims again: there is room")
        self._guarded(self._beat)

    # -- life -------------------------------------------------------------------------------------------

    def start(self, getting_ready: str | None = None) -> None:
        """Report at once (errors are the caller's), then from a thread. Once more is another report.

        `getting_ready` says what is to be done before anything can be claimed: until the next start the
        worker waits for that, with its device its own."""
        self._lacking = getting_ready
        self._beat()
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._thread.start()
        VIGIL.vital(self._thread)

    def stop(self) -> None:
        """Report no more, and take the row and the device's lease away. Once more does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5.0)
        try:
            self.give_back()
            self._database.run(self._leave)
        except StoreError as error:
            _log.warning("could not say good-bye", error=str(error))

    def _leave(self, session: Any) -> None:
        workers.remove(session, self.owner)
        leases.release_all(session, self.owner)

    def _run(self) -> None:
        beaten_at = time.monotonic()
        while not self._stop.is_set():
            busy = self._busy()
            self._wake.wait(renew_s() if busy else heartbeat_s())
            self._wake.clear()
            if self._stop.is_set():
                return
            if self._busy() and not busy:
                # Work has begun just now: most of it ends before the first renewal.
                self._stop.wait(renew_s())
            self._guarded(self._renew)
            if time.monotonic() - beaten_at >= 0.9 * heartbeat_s():
                beaten_at = time.monotonic()
                self._guarded(self._beat)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Whatever goes wrong (memory that is short, too), the thread goes on: without it a worker would
        claim and never renew, and every trial that it touches would lose its worker."""
        try:
            action()
            if self._failing:
                self._failing = False
                _log.info("the database answers again")
        except StoreError as error:
            if not self._failing:
                self._failing = True
                _log.warning("the database does not answer", error=str(error))
        except Exception as error:  # noqa: BLE001 - as said above
            if not self._failing:
                self._failing = True
                with contextlib.suppress(Exception):  # a log line needs memory
                    _log.error("cannot report", exc_info=error)

    def _busy(self) -> bool:
        with self._lock:
            return bool(self._claims) or self._single is not None

    def _renew(self) -> None:
        with self._lock:
            claims, single = sorted(self._claims), self._single
        if not claims and single is None:
            return
        asked_at = time.monotonic()
        gone: set[ClaimId] = set()
        if claims:
            held = self._database.run(lambda s: trials.renew(s, claims, lease_s()))
            gone |= set(claims) - set(held)
        if single is not None:
            kind, claim = single
            if not self._database.run(lambda s: kind.renew(s, claim, lease_s())):
                gone.add(claim)
        with self._lock:
            # Only what is still held: a claim that was finished meanwhile is not lost.
            still = self._claims | ({self._single[1]} if self._single is not None else set())
            self._lost |= gone & still
            self._renewed_at = asked_at

    def _beat(self) -> None:
        busy = WorkerState.BUSY if self._busy() else WorkerState.IDLE

        def write(session: Session) -> str | None:
            other = self._other_owner(session)
            missing = self._lacking or (None if other is None else spare_of(self.device_key, other))
            state = busy if missing is None else WorkerState.WAITING
            data = {**self.data, **told(), **({} if missing is None else {"waits_for": missing})}
            me = (self.owner, self.kind, self.host, os.getpid(), self.device_key, state, data)
            workers.heartbeat(session, *me)
            return other

        other = self._database.run(write)
        was, self.device_lost = self.device_lost, other is not None
        if other is not None and not was:
            # An error, so that a supervisor shows it: it was frozen, or could not reach the database.
            _log.error(f"lost the device for now: {spare_of(self.device_key, other)}", device=self.device_key)
        elif was and other is None:
            _log.error("the device is this worker's again", device=self.device_key)

    def _other_owner(self, session: Session) -> str | None:
        """Who has the device's lease, if not this worker once this has been called."""
        if self.device_key is None:
            return None
        if leases.acquire(session, self.device_lease, self.owner, device_lease_s()) is not None:
            return None
        held = leases.holder(session, self.device_lease)
        return "" if held is None else held.owner


def spare_of(device_key: str | None, owner: str) -> str:
    """What a worker waits for while another has its device's lease."""
    who = owner.split("@")[-1].split("/")[0] or "another host"
    return (
        f"A worker on {who} owns {device_key}; only one may, also of hosts with equal devices. "
        f"This one is its spare: it begins within {device_lease_s():.0f} s of the other's end."
    )
