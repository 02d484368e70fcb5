"""Which artifacts are known, and which of their bytes are kept?"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256 as sha256_of

from sqlalchemy import exists, or_, select, update
from sqlalchemy.orm import Session, aliased, undefer

from . import clock
from .bounded import json_object
from .enums import ArtifactKind
from .errors import ArtifactMismatch
from .models import Artifact, Emulation, Job, Quarantine, RaceEntrant, Release, Trial
from .records import ArtifactRecord, Json
from .sql import changed, insert_ignoring
from .transitions import TRIAL_OPEN


def put(
    s: Session,
    sha256: str,
    data: bytes | None,
    kind: ArtifactKind,
    recipe: Json,
    arch: str = "",
    ptx: bytes | None = None,
) -> None:
    """Stores it; ArtifactMismatch unless the bytes have this hash. Known already: missing bytes are
    filled in (of a cubin with its PTX), nothing else changes."""
    if data is not None and (actual := sha256_of(data).hexdigest()) != sha256:
        raise ArtifactMismatch(sha256, actual)
    values = {
        "sha256": sha256,
        "kind": kind,
        "arch": arch,
        "size_bytes": 0 if data is None else len(data),
        "stored": data is not None,
        "created_at": clock.now(s),
        "recipe": json_object(recipe),
        "data": data,
        "ptx": ptx,
    }
    if insert_ignoring(s, Artifact, values) or data is None:
        return
    fill = {"data": data, "size_bytes": len(data), "stored": True, "ptx": ptx}
    changed(s, update(Artifact).where(Artifact.sha256 == sha256, Artifact.stored.is_(False)).values(**fill))


def get(s: Session, sha256: str) -> ArtifactRecord | None:
    row = s.get(Artifact, sha256, options=[undefer(Artifact.recipe)], populate_existing=True)
    if row is None:
        return None
    return ArtifactRecord(
        sha256=row.sha256,
        kind=row.kind,
        arch=row.arch,
        size_bytes=row.size_bytes,
        recipe=row.recipe,
        stored=row.stored,
        created_at=row.created_at,
    )


def get_bytes(s: Session, sha256: str) -> bytes | None:
    """None where it is unknown or its bytes were pruned."""
    return s.scalar(select(Artifact.data).where(Artifact.sha256 == sha256))


def many_bytes(s: Session, wanted: Collection[str]) -> dict[str, bytes]:
    """`get_bytes` of those that are kept, by hash."""
    rows = s.execute(select(Artifact.sha256, Artifact.data).where(Artifact.sha256.in_(wanted)))
    return {sha256: data for sha256, data in rows if data is not None}


def get_ptx(s: Session, sha256: str) -> bytes | None:
    """The PTX that was emitted with a cubin; None where it is unknown, has none, or was pruned."""
    return s.scalar(select(Artifact.ptx).where(Artifact.sha256 == sha256))


def prune(s: Session, job_id: int) -> int:
    """Drops the bytes of a job's kernels that no release, race, emulation, quarantine or open trial needs;
    hash and recipe stay. Returns how many.

    Trials of other open jobs count as needing them too: one kernel serves every size of a sweep, and
    any of those trials may yet become a finalist.
    """
    other, entrant, ran = aliased(Trial), aliased(Trial), aliased(Trial)
    needed = or_(
        exists().where(Release.artifact_sha256 == Artifact.sha256),
        exists().where(Quarantine.artifact_sha256 == Artifact.sha256),
        # what a verdict rests on, or will: the one schedule of its structure that is run
        exists().where(ran.artifact_sha256 == Artifact.sha256, Emulation.trial_id == ran.id),
        exists().where(entrant.artifact_sha256 == Artifact.sha256, RaceEntrant.trial_id == entrant.id),
        exists().where(
            other.artifact_sha256 == Artifact.sha256,
            Job.id == other.job_id,
            or_(other.state.in_(TRIAL_OPEN), (other.job_id != job_id) & Job.finished_at.is_(None)),
        ),
    )
    of_job = select(Trial.artifact_sha256).where(Trial.job_id == job_id, Trial.artifact_sha256.is_not(None))
    return changed(
        s,
        update(Artifact)
        .where(
            Artifact.sha256.in_(of_job),
            Artifact.kind == ArtifactKind.KERNEL,
            Artifact.stored.is_(True),
            ~needed,
        )
        .values(data=None, stored=False, ptx=None),
    )
