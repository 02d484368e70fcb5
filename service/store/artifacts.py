"""Which artifacts are known, and which of their bytes are kept?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .enums import ArtifactKind
from .records import ArtifactRecord, Json


def put(
    s: Session, sha256: str, data: bytes | None, kind: ArtifactKind, recipe: Json, arch: str = ""
) -> None:
    """Stores it; ArtifactMismatch unless the bytes have this hash. Known already: missing bytes are
    filled in, nothing else changes."""
    raise NotImplementedError


def get(s: Session, sha256: str) -> ArtifactRecord | None:
    raise NotImplementedError


def get_bytes(s: Session, sha256: str) -> bytes | None:
    """None where it is unknown or its bytes were pruned."""
    raise NotImplementedError


def prune(s: Session, job_id: int) -> int:
    """Drops the bytes of a job's kernels that no release, race, quarantine or open trial needs; hash and
    recipe stay. Returns how many."""
    raise NotImplementedError
