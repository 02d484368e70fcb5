"""What does an emulate worker do in one step: claim one schedule, run it where it can be killed, tell?

It keeps out of a measurement's way as a compile does, by the host's gate; a run takes longer than anybody
should wait, so it is paused where it is, every half a second, for whoever wants the host alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from rooftile.device import CUDA_ARCHS

from search_space.device import Device
from service.bus import Doorbell, HostGate, Kind, about
from service.periods import lease_s
from service.store import artifacts, devices, emulation_claims
from service.store.database import Database
from service.store.enums import EmulationScope, TrialReason
from service.store.records import EmulateClaim, EmulateOutcome, Undecided
from worker.compile import rebuild
from worker.errors import CompilerMissingError, RebuildError
from worker.keeper import Keeper, Stopping
from worker.verify.proof import DEFAULT_LIMITS, ProofLimits, ProofProcess

_log = structlog.get_logger("rooftile.emulate")

# A measurement that wants the host waits this long at most.
SLICE_S = 0.5


class PtxLostError(Exception):
    """PTX that is neither in the database nor can be made again."""


class EmulateWorker:
    """The step of an emulate loop."""

    def __init__(
        self,
        database: Database,
        gate: HostGate,
        doorbell: Doorbell,
        keeper: Keeper,
        home: Path,
        *,
        limits: ProofLimits = DEFAULT_LIMITS,
        archs: Sequence[str] = CUDA_ARCHS,
        root: Path | None = None,
    ) -> None:
        """`root` is where templates lie (default: kernels/ of this installation)."""
        self._database = database
        self._gate = gate
        self._doorbell = doorbell
        self._keeper = keeper
        self._home = home
        self._limits = limits
        self._archs = tuple(archs)
        self._root = root
        self.stopper: Stopping | None = None

    def step(self) -> bool:
        """True when there was something to do."""
        with self._database.read() as session:
            if not emulation_claims.waits(session, self._archs):
                return False
        # The gate first: a claim that waits for a measurement to end is a claim nobody works on.
        with self._gate.shared():
            owner = self._keeper.owner
            claim = self._database.run(lambda s: emulation_claims.claim(s, owner, lease_s(), self._archs))
        if claim is None:
            return False
        self._keeper.hold_emulation(claim.claim_id)
        try:
            with about(job_id=claim.job_id, trial_id=claim.trial_id):
                outcome = self._work(claim)
                if outcome is not None:
                    self._finish(claim, outcome)
        finally:
            # Whatever is still held goes back: a stop, a run that nobody wants any more, an error of ours.
            self._keeper.give_back()
        return True

    def _work(self, claim: EmulateClaim) -> EmulateOutcome | None:
        """The outcome; None where it goes back."""
        try:
            ptx = self._ptx(claim.artifact_sha256)
        except PtxLostError as error:
            return Undecided(TrialReason.ARTIFACT_LOST, {"message": str(error)})
        path = self._home / "work" / f"emulate-{self._keeper.owner.rpartition('/')[2]}.ptx"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(ptx)
        try:
            return self._run(claim, path)
        finally:
            path.unlink(missing_ok=True)

    def _run(self, claim: EmulateClaim, ptx: Path) -> EmulateOutcome | None:
        task = {
            "ptx": str(ptx),
            "problem": dict(claim.problem),
            "device": self._device(claim).to_json(),
            "schedule": dict(claim.schedule),
            "family": claim.family,
            "seed": claim.seed,
            # A finalist is looked at more closely than the first of its structure.
            "random": claim.scope is EmulationScope.TRIAL,
        }
        outcome, killed = self._prove(claim, task)
        if killed:  # as the kernel does when memory is short: once more, afresh
            _log.warning("the emulator's process was killed; it is started once more", trial=claim.trial_id)
            outcome, _ = self._prove(claim, task)
        return outcome

    def _prove(self, claim: EmulateClaim, task: Mapping[str, Any]) -> tuple[EmulateOutcome | None, bool]:
        """One process to its end; its outcome, None where nobody wants it any more, and whether somebody else
        ended it."""
        with ProofProcess(task, self._limits) as proof:
            while not self._unwanted(claim):
                with self._gate.shared():
                    proof.go_on()
                    outcome = proof.wait(SLICE_S)
                    if outcome is not None:
                        return outcome, proof.killed
                    proof.pause()
        return None, False

    def _unwanted(self, claim: EmulateClaim) -> bool:
        return self._keeper.lost(claim.claim_id) or (self.stopper is not None and self.stopper.stopping)

    def _device(self, claim: EmulateClaim) -> Device:
        if claim.device_key is None:
            return Device.for_arch(claim.arch)
        with self._database.read() as session:
            row = devices.get(session, claim.device_key)
        if row is not None and row.data.get("key") == claim.device_key:
            return Device.from_json(row.data)
        return Device.for_key(claim.device_key)

    def _ptx(self, sha256: str) -> bytes:
        with self._database.read() as session:
            kept = artifacts.get_ptx(session, sha256)
            record = artifacts.get(session, sha256) if kept is None else None
        if kept is not None:
            return kept
        if record is None:
            raise PtxLostError(f"The artifact {sha256[:12]} is unknown.")
        try:
            made = rebuild(record.recipe, sha256, home=self._home, root=self._root)
        except (RebuildError, CompilerMissingError) as error:
            raise PtxLostError(str(error)) from None
        if made.ptx is None:
            raise PtxLostError(f"The artifact {sha256[:12]} has no PTX.")
        return made.ptx

    def _finish(self, claim: EmulateClaim, outcome: EmulateOutcome) -> None:
        written = self._database.run(lambda s: emulation_claims.finish(s, claim.claim_id, outcome))
        self._keeper.drop(claim.claim_id)
        if written:
            self._doorbell.ring(Kind.SEARCH, claim.job_id)
        else:
            _log.info("a late verdict was not needed", emulation=claim.emulation_id)
