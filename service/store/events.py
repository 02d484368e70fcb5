"""What happened, in which order, and what has a reader not seen yet?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .records import EventRecord, Json


def note(s: Session, job_id: int | None, to: str, data: Json | None = None) -> None:
    """Tells something that moves nothing (kind `note`); `to` is its short name."""
    raise NotImplementedError


def after(s: Session, last_id: int, *, job_id: int | None = None, limit: int = 500) -> list[EventRecord]:
    """Events with a greater id, in order. Ids become visible in order: none is ever skipped."""
    raise NotImplementedError


def latest_id(s: Session, job_id: int | None = None) -> int:
    """Id of the newest event (of a job); 0 where there is none. Good as an ETag of a job."""
    raise NotImplementedError
