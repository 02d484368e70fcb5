"""What does a measure worker do in one step: claim a race or some trials, run them, write each outcome?"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog
from rooftile.plan import LaunchPlan
from rooftile.problem import parse_problem

from service.bus import Doorbell, HostGate, Kind, about
from service.periods import lease_s
from service.store import artifacts, races, trials
from service.store.database import Database
from service.store.enums import EntrantRole, TrialReason, TrialState
from service.store.records import Failed, MeasureClaim, Measured, RaceClaim
from worker.compile import rebuild
from worker.compile.cache import ArtifactCache
from worker.errors import CompilerMissingError, RebuildError, TrialCancelled
from worker.keeper import Keeper, Stopping
from worker.measure.cuda_device import SharedGate
from worker.measure.cuda_session import CudaSession
from worker.measure.roof import refresh_roof, save_roof
from worker.measure.session import MeasureSession, RaceEntrant

_log = structlog.get_logger("rooftile.measure")

# One turn at the host's gate: long against taking it, short against somebody who wants to compile.
TURN_S = 1.5
# Where nobody else wants the host a turn may last longer: between two of them the device waits.
LONG_TURN_S = 10.0
MOST_CLAIMS = 4

T = TypeVar("T")


class ArtifactLostError(Exception):
    """Bytes that are neither here, nor in the database, nor can be made again."""


class Artifacts:
    """Paths of artifacts by hash: from the cache, the database, or built again from their recipe."""

    def __init__(self, database: Database, home: Path, root: Path | None = None) -> None:
        self._database = database
        self._home = home
        self._root = root
        self._cache = ArtifactCache(home)

    def fetch(self, wanted: Collection[str]) -> None:
        """Bring into the cache, in one question, what the database has of these."""
        missing = [sha256 for sha256 in dict.fromkeys(wanted) if not self._cache.blob_path(sha256).exists()]
        if not missing:
            return
        with self._database.glance() as session:
            found = artifacts.many_bytes(session, missing)
        for sha256, data in found.items():
            if hashlib.sha256(data).hexdigest() == sha256:  # else `path` says so
                self._cache.put_bytes(sha256, data)

    def path(self, sha256: str) -> Path:
        """A file whose bytes have this hash. Raises ArtifactLostError."""
        data = self._cache.get_bytes(sha256)
        if data is not None:
            return self._cache.blob_path(sha256)
        with self._database.read() as session:
            data = artifacts.get_bytes(session, sha256)
            record = artifacts.get(session, sha256) if data is None else None
        if data is not None:
            if hashlib.sha256(data).hexdigest() != sha256:
                raise ArtifactLostError(f"The bytes kept for {sha256[:12]} do not have that hash.")
            return self._cache.put_bytes(sha256, data)
        if record is None:
            raise ArtifactLostError(f"The artifact {sha256[:12]} is unknown.")
        try:
            made = rebuild(record.recipe, sha256, home=self._home, root=self._root)
        except (RebuildError, CompilerMissingError) as error:
            raise ArtifactLostError(str(error)) from None
        return self._cache.put_bytes(sha256, made.data)


class MeasureWorker:
    """The step of a measure loop, for one device."""

    def __init__(
        self,
        database: Database,
        gate: HostGate | SharedGate,
        doorbell: Doorbell,
        keeper: Keeper,
        session: MeasureSession | CudaSession,
        home: Path,
        *,
        root: Path | None = None,
    ) -> None:
        """`root` is where templates lie (default: kernels/ of this installation)."""
        self._database = database
        self._gate = gate
        self._doorbell = doorbell
        self._keeper = keeper
        self._session = session
        self._artifacts = Artifacts(database, home, root)
        self._device_key = session.device_key
        # Beside a GPU a result is written while the next trial runs, and the next trials are claimed while
        # the last one of these does. On a CPU that would disturb it.
        behind = isinstance(gate, SharedGate)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="beside") if behind else None
        self._writing: Future[None] | None = None
        self._claiming: Future[list[MeasureClaim]] | None = None
        self.stopper: Stopping | None = None

    def step(self) -> bool:
        """True when there was something to do."""
        with self._database.glance() as session:
            if not (
                races.waits(session, self._device_key) or trials.measure_waits(session, self._device_key)
            ):
                return False
        if self._keeper.device_lost:
            return False
        with self._gate.exclusive():
            try:
                return self._turn()
            finally:
                try:
                    self._beside_done()
                finally:
                    # Whatever is still held goes back: a stop, a cancelled job, an error of ours.
                    self._keeper.give_back()

    def _turn(self) -> bool:
        """One race, or trials for about as long as a turn lasts."""
        owner, key = self._keeper.owner, self._device_key
        session = self._session
        if isinstance(session, CudaSession):  # its roof is the product's
            return self._claim_and_run(owner, key)
        if session.roof_is_doubtful:
            refresh_roof(self._database, session)
        known = session.roof
        try:
            return self._claim_and_run(owner, key)
        finally:
            if session.roof is not known:
                save_roof(self._database, session)  # something beat it, and it was measured again

    def _claim_and_run(self, owner: str, key: str) -> bool:
        race = self._database.run(lambda s: races.claim(s, owner, key, lease_s()))
        if race is not None:
            with about(job_id=race.job_id, race_id=race.race_id):
                self._race(race)
            return True
        return self._run_trials()

    def _run_trials(self) -> bool:
        """Batch after batch, until the turn is over. Beside a GPU the next is claimed while the last trial of
        this one runs: else the device would wait for two transactions after every few trials."""
        began_s = time.monotonic()
        best: dict[int, float] = {}
        claims = self._claim()
        did = bool(claims)
        while claims:
            for claim in claims:
                if self._stopping:
                    return True
                if claim is claims[-1] and self._goes_on(began_s):
                    self._claim_ahead()
                with about(job_id=claim.job_id, trial_id=claim.trial_id):
                    self._trial(claim, best)
            self._tell(claims[-1].job_id)
            claims = self._next(began_s)
        return did

    def _goes_on(self, began_s: float) -> bool:
        """Whether more may be claimed in this turn."""
        if self._stopping or self._keeper.device_lost:
            return False
        turn_s = time.monotonic() - began_s
        gate = self._gate
        return turn_s < TURN_S or (
            isinstance(gate, SharedGate) and turn_s < LONG_TURN_S and not gate.wanted()
        )

    def _claim(self) -> list[MeasureClaim]:
        claims = self._ask_for_claims(ahead=False)
        if claims:
            self._keeper.hold(claim.claim_id for claim in claims)
            self._fetch(claims)
        return claims

    def _claim_ahead(self) -> None:
        """Begin to claim beside the trial that runs. What comes is held, and renewed, at once."""
        if self._beside is None:
            return

        def claim() -> list[MeasureClaim]:
            claims = self._ask_for_claims(ahead=True)
            self._keeper.hold_more(claim.claim_id for claim in claims)
            self._fetch(claims)
            return claims

        self._claiming = self._beside.submit(claim)

    def _ask_for_claims(self, *, ahead: bool) -> list[MeasureClaim]:
        owner, key = self._keeper.owner, self._device_key
        return self._database.run(
            lambda s: trials.claim_measure(s, owner, key, MOST_CLAIMS, lease_s(), ahead=ahead)
        )

    def _fetch(self, claims: Sequence[MeasureClaim]) -> None:
        wanted = [sha256 for one in claims for sha256 in (one.artifact_sha256, one.pool_sha256) if sha256]
        self._artifacts.fetch(wanted)

    def _next(self, began_s: float) -> list[MeasureClaim]:
        """The next batch: what was claimed ahead; on a CPU what is claimed now."""
        claiming, self._claiming = self._claiming, None
        if claiming is not None:
            return claiming.result()
        return self._claim() if self._beside is None and self._goes_on(began_s) else []

    @property
    def _stopping(self) -> bool:
        return self.stopper is not None and self.stopper.stopping

    def _trial(self, claim: MeasureClaim, best: dict[int, float]) -> None:
        outcome = self._guarded(claim.claim_id, lambda: self._measure(claim, best))
        if outcome is None:
            return
        if isinstance(outcome, Measured) and not outcome.culled and not outcome.measurement.contended:
            known = best.get(claim.job_problem_id, outcome.measurement.median_us)
            best[claim.job_problem_id] = min(known, outcome.measurement.median_us)
        self._written()
        if self._beside is None:
            self._write(claim, outcome)
        else:
            self._writing = self._beside.submit(self._write, claim, outcome)

    def _write(self, claim: MeasureClaim, outcome: Measured | Failed) -> None:
        written = self._database.run(lambda s: trials.finish_measure(s, claim.claim_id, outcome))
        self._keeper.drop(claim.claim_id)
        if not written:
            _log.info("a late result was not needed", trial=claim.trial_id)

    def _tell(self, job_id: int) -> None:
        """Wake the search, once what was written so far is written. Once a batch: a bell costs it several
        milliseconds, and more than a batch is under way. Where trials last it looks by itself meanwhile."""
        if self._beside is None:
            self._doorbell.ring(Kind.SEARCH, job_id)
        else:
            self._beside.submit(self._doorbell.ring, Kind.SEARCH, job_id)

    def _written(self) -> None:
        """Wait until the result before this one is written; what went wrong there is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _beside_done(self) -> None:
        """Wait until nothing is written or claimed beside the device any more."""
        claiming, self._claiming = self._claiming, None
        try:
            self._written()
        finally:
            if claiming is not None:
                claiming.result()

    def _measure(self, claim: MeasureClaim, best: dict[int, float]) -> Measured | Failed:
        plan = LaunchPlan.from_json(claim.plan)
        if claim.pool_sha256 is None and plan.kind == "x86":
            return _lost("The trial names no thread pool.")
        known = [value for value in (claim.best_us, best.get(claim.job_problem_id)) if value is not None]
        return self._session.trial(
            parse_problem(claim.problem),
            plan,
            self._artifacts.path(claim.artifact_sha256),
            self._pool(claim.pool_sha256),
            claim.policy,
            input_seed(claim.job_problem_id, claim.problem),
            min(known, default=None),
            cancelled=lambda: self._stopping or self._keeper.lost(claim.claim_id),
        )

    def _race(self, claim: RaceClaim) -> None:
        self._keeper.hold_race(claim.claim_id)
        outcome = self._guarded(claim.claim_id, lambda: self._run_race(claim))
        if outcome is None:
            return
        written = self._database.run(lambda s: races.finish(s, claim.claim_id, outcome))
        self._keeper.drop(claim.claim_id)
        if written:
            self._doorbell.ring(Kind.SEARCH, claim.job_id)
        else:
            _log.info("a late race was not needed", race=claim.race_id)

    def _run_race(self, claim: RaceClaim) -> Any:
        entrants = []
        for one in claim.entrants:
            if one.role is EntrantRole.BASELINE:
                entrants.append(RaceEntrant(one.name, one.role))
                continue
            if one.artifact_sha256 is None or one.plan is None:
                return _lost(f"The entrant {one.name} has no artifact.")
            plan = LaunchPlan.from_json(one.plan)
            if one.pool_sha256 is None and plan.kind == "x86":
                return _lost(f"The entrant {one.name} names no thread pool.")
            entrants.append(
                RaceEntrant(
                    one.name,
                    one.role,
                    one.trial_id,
                    plan,
                    self._artifacts.path(one.artifact_sha256),
                    self._pool(one.pool_sha256),
                )
            )
        return self._session.race(
            parse_problem(claim.problem),
            entrants,
            claim.policy,
            input_seed(claim.job_problem_id, claim.problem),
            cancelled=lambda: self._stopping or self._keeper.lost(claim.claim_id),
        )

    def _pool(self, sha256: str | None) -> Path | None:
        return None if sha256 is None else self._artifacts.path(sha256)

    def _guarded(self, claim_id: tuple[int, int], action: Callable[[], T]) -> T | Failed | None:
        """The outcome of `action`; None where nobody wants it any more."""
        if self._keeper.lost(claim_id):
            self._keeper.drop(claim_id)
            return None
        try:
            return action()
        except TrialCancelled:
            if self._keeper.lost(claim_id):
                self._keeper.drop(claim_id)
            return None  # stopping: what is still held goes back
        except ArtifactLostError as error:
            return _lost(str(error))


def _lost(message: str) -> Failed:
    return Failed(TrialState.FAILED, TrialReason.ARTIFACT_LOST, {"message": message})


def input_seed(job_problem_id: int, problem: Any) -> int:
    """The seed of all inputs of one job problem.

    One for all its trials and its race: random numbers and a float64 reference for each trial would take
    longer than the trial. Every candidate is a new process with poisoned outputs: no other's answer is there.
    """
    text = f"{job_problem_id}:{problem}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") & 0x7FFF_FFFF
