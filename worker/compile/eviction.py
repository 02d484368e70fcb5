"""How does the artifact cache stay within its size, beside others that read and write it?

Least recently used first, by the files' own times: each use touches its files. There are no locks, because a
lock on a shared disk is a promise that few keep: whoever sweeps lists the files and removes the oldest, and a
file that somebody else has removed already was just as old for them. Readers take the bytes into memory and
check the hash; one that finds a file gone builds it again. Files used within GRACE_S are left alone, since
somebody may be about to map them by their path; so are files that are being written. "Now" is what the disk
says of a file just touched: on a shared disk the clocks of two machines differ.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 600.0
KEEP_SHARE = 0.9
"""A sweep goes down to this share of the limit, so that not every write sweeps."""
STALE_PART_S = 3600.0
"""A half-written file of this age belongs to a process that was killed."""
_MARK = ".swept"
PART_PREFIX = ".new-"


@dataclass(frozen=True)
class Swept:
    """What a sweep found and did."""

    bytes_before: int
    bytes_after: int
    removed: int


def touch(path: Path) -> None:
    """Say that a file was used now, by the disk's own clock. A disk that is full or read-only is no error."""
    with contextlib.suppress(OSError):
        os.utime(path)


def sweep(root: Path, limit_bytes: int, *, grace_s: float = GRACE_S) -> Swept:
    """Remove the least recently used files under `root` until they fit `KEEP_SHARE` of `limit_bytes`.

    Nothing happens while they fit the limit. Never raises for what it finds.
    """
    now = _now(root)
    files: list[tuple[float, int, Path]] = []
    total = 0
    for folder, _folders, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                info = path.lstat()
            except OSError:
                continue
            if not stat.S_ISREG(info.st_mode) or name == _MARK:
                continue
            if name.startswith(PART_PREFIX):
                if now - info.st_mtime > STALE_PART_S:
                    _remove(path)
                continue
            total += info.st_size
            files.append((info.st_mtime, info.st_size, path))
    before, removed = total, 0
    if total <= limit_bytes:
        return Swept(before, total, 0)
    for used, size, path in sorted(files):
        if total <= KEEP_SHARE * limit_bytes or now - used < grace_s:
            break
        last = _last_use(path)
        if last is not None and last != used:
            continue  # somebody has just used it
        if last is not None:
            if not _remove(path):
                continue
            removed += 1
        total -= size
    return Swept(before, total, removed)


def _now(root: Path) -> float:
    mark = root / _MARK
    try:
        mark.touch()
        return mark.stat().st_mtime
    except OSError:
        # No room even for an empty file: then it is there from before, or the newest file is near enough.
        newest = 0.0
        for path in root.rglob("*"):
            with contextlib.suppress(OSError):
                newest = max(newest, path.stat().st_mtime)
        return newest


def _last_use(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


def _remove(path: Path) -> bool:
    """Whether it is gone; on a disk that is read-only it is not."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
