"""When is a release published, pinned, rolled back and withdrawn?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from service.jobs import proving
from service.jobs.decide import Decision, Facts, Served
from service.jobs.errors import IllegalMove, NotFound, NothingToRollBack
from service.jobs.proving import Proof
from service.store import audit, quarantines, releases, trials
from service.store.enums import AuditAction, EntrantRole, ReleaseState, Winner
from service.store.records import JobProblemRecord, JobRecord, NewRelease, RaceRecord, ReleaseRecord

# ---------------------------------------------------------------- after a race


def served_for(s: Session, job: JobRecord, row: JobProblemRecord) -> ReleaseRecord | None:
    """What is served today for a job problem's problem, device and policy."""
    if row.device_key is None:
        return None
    return releases.best(s, row.problem_key, row.device_key, job.policy_key)


def as_served(release: ReleaseRecord | None) -> Served | None:
    """What `decide` needs to know of it."""
    if release is None:
        return None
    return Served(
        winner=release.winner,
        trial_id=release.trial_id,
        schedule_key=release.schedule_key,
        artifact_sha256=release.artifact_sha256,
        toolchain_key=release.toolchain_key,
    )


def publish(
    s: Session,
    job: JobRecord,
    row: JobProblemRecord,
    race: RaceRecord,
    decision: Decision,
    facts: Mapping[int, Facts],
) -> ReleaseRecord:
    """Write the release that a race decided on, and serve it unless what is served is pinned, or no emulated
    verdict speaks for it though its family needs one."""
    assert decision.winner is not None
    assert decision.time_us is not None
    ours = decision.winner is Winner.TRIAL and decision.trial_id is not None
    unproven = ours and _unproven(s, decision.trial_id)
    before = served_for(s, job, row)
    made = releases.create(
        s,
        NewRelease(
            job_problem_id=row.id,
            policy=job.policy,
            policy_key=job.policy_key,
            winner=decision.winner,
            trial_id=decision.trial_id if decision.winner is Winner.TRIAL else None,
            race_id=race.id,
            time_us=decision.time_us,
            baseline_time_us=decision.baseline_us,
            tie_set=[dict(one) for one in decision.tie_set],
            noise=dict(decision.noise),
            baseline=_baseline(race),
            reason=decision.reason,
            unproven=unproven,
        ),
    )
    if unproven:
        return made
    if before is not None and before.pinned:
        return made
    published = releases.publish(s, made.id, decision.reason)
    told = {"job": job.id, "reason": decision.reason}
    audit.write(s, audit.service(), AuditAction.RELEASE_PUBLISHED, f"release:{made.id}", told)
    return published


def _unproven(s: Session, trial_id: int | None) -> bool:
    trial = None if trial_id is None else trials.get(s, trial_id)
    if trial is None:
        return False
    return proving.proof(s, trial) not in (Proof.PROVEN, Proof.NOT_NEEDED)


def unproven_because(job: JobRecord) -> str:
    """Why a release waits for an admin."""
    if proving.policy(job) == "never":
        return "nobody ran it in the emulator, as was asked; an admin may publish it, marked unproven"
    return "the emulator's verdict on it could not be had; an admin may publish it, marked unproven"


def _baseline(race: RaceRecord) -> dict[str, Any]:
    """What raced as the vendor's kernel: which library with which kernels, and how it did."""
    entrant = next((e for e in race.entrants if e.role is EntrantRole.BASELINE), None)
    if entrant is None:
        return {}
    if entrant.measurement is None:
        reason = None if entrant.failure is None else str(entrant.failure.reason)
        return {"time_us": None, "reason": reason}
    m = entrant.measurement
    environment = {k: v for k, v in m.environment.items() if k != "round_medians_us"}
    return {
        "time_us": m.median_us,
        "q10_us": m.q10_us,
        "q90_us": m.q90_us,
        "contended": m.contended,
        "passed": None if entrant.verdict is None else entrant.verdict.passed,
        "environment": environment,
    }


def withdraw_quarantined(s: Session) -> list[ReleaseRecord]:
    """Take back every published release whose schedule gave a wrong result under its toolchain."""
    reason = "its schedule gave a wrong result under this toolchain"
    withdrawn = []
    for release in releases.quarantined(s):
        withdrawn.append(releases.withdraw(s, release.id, reason))
        subject = f"release:{release.id}"
        audit.write(s, audit.service(), AuditAction.RELEASE_WITHDRAWN, subject, {"reason": reason})
    return withdrawn


# ---------------------------------------------------------------- by a person


def pin(s: Session, release_id: int) -> ReleaseRecord:
    """Keep serving this release, whatever later jobs find."""
    release = _locked(s, release_id)
    if release.state is not ReleaseState.PUBLISHED:
        raise IllegalMove("release", str(release_id), str(release.state), "pin", [ReleaseState.PUBLISHED])
    return release if release.pinned else releases.pin(s, release_id, True)


def unpin(s: Session, release_id: int) -> ReleaseRecord:
    """Let a better release take its place again. Not pinned: nothing happens."""
    release = _locked(s, release_id)
    return releases.pin(s, release_id, False) if release.pinned else release


def publish_candidate(s: Session, release_id: int) -> ReleaseRecord:
    """Serve a release that waits for a person, marked unproven while no emulated verdict speaks for it. One
    that is known to be wrong is never served."""
    release = _locked(s, release_id)
    if release.state is ReleaseState.PUBLISHED:
        return release
    if release.state is not ReleaseState.CANDIDATE or _is_quarantined(s, release):
        state = "quarantined" if release.state is ReleaseState.CANDIDATE else str(release.state)
        raise IllegalMove("release", str(release_id), state, "publish", [ReleaseState.CANDIDATE])
    if release.winner is Winner.TRIAL:
        releases.set_unproven(s, release_id, _unproven(s, release.trial_id))
    return releases.publish(s, release_id, f"published by a person: {release.reason}")


def rollback(s: Session, release_id: int) -> ReleaseRecord:
    """Stop serving this release and serve the newest one before it that was not withdrawn."""
    release = _locked(s, release_id)
    if release.state is not ReleaseState.PUBLISHED:
        allowed = [ReleaseState.PUBLISHED]
        raise IllegalMove("release", str(release_id), str(release.state), "roll back", allowed)
    line = releases.history(s, release.problem_key, release.device_key, release.policy_key)
    for earlier in line:
        if earlier.generation >= release.generation or earlier.state is not ReleaseState.SUPERSEDED:
            continue
        if _is_quarantined(s, earlier) or _locked(s, earlier.id).state is not ReleaseState.SUPERSEDED:
            continue
        # A person asked, so a pin does not hold; it goes with the release it was set on.
        return releases.publish(s, earlier.id, f"rolled back from release {release_id}", over_pin=True)
    raise NothingToRollBack("release", str(release_id), "the first that can be served", "roll back")


def withdraw(s: Session, release_id: int, reason: str = "withdrawn by a person") -> ReleaseRecord:
    """Take a release back for good; clients drop it at their next refresh. Twice is once."""
    _get(s, release_id)
    return releases.withdraw(s, release_id, reason)


def _is_quarantined(s: Session, release: ReleaseRecord) -> bool:
    if release.schedule_key is None or release.toolchain_key is None:
        return False
    return quarantines.holds(s, release.arch, release.schedule_key, release.toolchain_key)


def _locked(s: Session, release_id: int) -> ReleaseRecord:
    """As it stays while it is decided on: others steer it too."""
    _get(s, release_id)
    return releases.lock(s, release_id)


def _get(s: Session, release_id: int) -> ReleaseRecord:
    release = releases.get(s, release_id)
    if release is None:
        raise NotFound("release", str(release_id))
    return release
