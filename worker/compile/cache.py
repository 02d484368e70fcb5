"""Where do built artifacts lie so that a hit gives the same record as a miss, and a broken file heals?

`<home>/cache/artifacts/recipes/<recipe key>.json` holds a record and its hash. The record names the bytes in
`blobs/<sha256>` and, for a cubin, its PTX in another blob. All are written aside and renamed, bytes first, so
that a record never names bytes that were not there. Every read checks the hashes; an entry that does not
match is dropped with one warning and built again (AT-77, AT-79), and so is whatever lies in a file's place.
Where nothing can be written, artifacts are built and not kept. Nothing relies on a lock: two that build the
same write the same, whoever is last, so a home on a shared disk works too. eviction.py keeps it in its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import structlog

from service.errors import DiskFullError, HomeError
from service.paths import home_error
from service.settings import get_settings
from worker.compile import cubin, eviction
from worker.compile.artifact import Artifact, Recipe, canonical, digest

_log = structlog.get_logger("rooftile.compile")

SCHEMA = 2
"""Of a kept record. One of another schema is a miss; the build that follows writes over it."""

# A sweep of a full cache takes tenths of a second: not at each write.
_SWEEP_SHARE = 1 / 32
# A file whose last use is written down so recently is not touched again.
_TOUCH_S = 60.0
_written: dict[Path, int] = {}
"""Bytes written by this process into each cache since it last swept it."""
_written_lock = threading.Lock()


_MOST_BYTES = 1 << 30
_unwritable: set[Path] = set()
"""Homes of which this process has said that nothing is kept there."""


class NoFileError(OSError):
    """Something else lies in a file's place, or far more than a cache ever wrote."""


class _Miss(Exception):
    """No fault: the bytes of a record were swept, or the record is of another schema."""


class ArtifactCache:
    """One user's cache under ROOFTILE_HOME."""

    def __init__(self, home: Path, *, limit_bytes: int | None = None) -> None:
        """`limit_bytes` is what it may take on disk; default: the setting ROOFTILE_CACHE_MIB."""
        self._home = home
        self._root = home / "cache" / "artifacts"
        self._limit_bytes = limit_bytes

    @cached_property
    def limit_bytes(self) -> int:
        """The size it is kept within."""
        if self._limit_bytes is not None:
            return self._limit_bytes
        return _limit_of_setting(os.environ.get("ROOFTILE_CACHE_MIB"))

    def blob_path(self, sha256: str) -> Path:
        """Where bytes of this hash lie, if they do. One name for all: what they are, they say themselves."""
        return self._root / "blobs" / sha256[:2] / f"{sha256}.so"

    def _recipe_path(self, key: str) -> Path:
        return self._root / "recipes" / key[:2] / f"{key}.json"

    def get(self, recipe: Recipe) -> Artifact | None:
        """The artifact of a recipe, or None. Never raises for what lies in the cache."""
        path = self._recipe_path(recipe.key)
        try:
            record = _opened(_read(path))
            if record["recipe"] != recipe.to_json():
                raise ValueError("it is of another recipe")
            data = self._expect(record["sha256"])
            ptx_sha256 = record.get("ptx_sha256")
            ptx = None if ptx_sha256 is None else self._expect(ptx_sha256)
            if cubin.is_cubin(data) and not ptx:
                raise ValueError("a cubin without its PTX")
            artifact = _artifact(record, data, ptx, cached=True)
        except (FileNotFoundError, _Miss):
            return None
        # RecursionError: JSON that is nested deeper than Python's own limit.
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning("dropped a broken cache entry", recipe=recipe.key[:12], error=str(error))
            _drop(path)
            return None
        _touch(path)
        return artifact

    def get_bytes(self, sha256: str) -> bytes | None:
        """Bytes by their hash, checked."""
        try:
            return self._read_blob(sha256)
        except OSError:
            return None

    def _expect(self, sha256: str) -> bytes:
        """The bytes that a record names. Raises _Miss, or ValueError or OSError for others in their place."""
        path = self.blob_path(sha256)
        _touch(path)
        try:
            data = _read(path)
        except FileNotFoundError:
            raise _Miss from None
        except NoFileError:
            _drop(path)
            raise
        if hashlib.sha256(data).hexdigest() != sha256:
            _drop(path)
            raise ValueError("the bytes do not match their record")
        return data

    def _read_blob(self, sha256: str) -> bytes | None:
        try:
            return self._expect(sha256)
        except (_Miss, ValueError):
            return None

    def put(
        self,
        recipe: Recipe,
        data: bytes,
        *,
        log: str,
        resources: dict[str, Any],
        compile_s: float,
        ptx: bytes | None = None,
    ) -> Artifact:
        """Keep a fresh build, where the disk takes it, and return the very record that a hit would return.
        Raises DiskFullError."""
        sha256 = hashlib.sha256(data).hexdigest()
        record: dict[str, Any] = {
            "sha256": sha256,
            "recipe": recipe.to_json(),
            "log": log,
            "resources": resources,
            "compile_s": compile_s,
        }
        if ptx is not None:
            record["ptx_sha256"] = hashlib.sha256(ptx).hexdigest()
        try:
            if ptx is not None:
                self.put_bytes(record["ptx_sha256"], ptx)
            self.put_bytes(sha256, data)
            self._write(self._recipe_path(recipe.key), _sealed(record))
            self._sweep_sometimes()
        except HomeError as error:
            if self._root not in _unwritable:
                _unwritable.add(self._root)
                _log.warning("artifacts are built and not kept", error=str(error))
        return _artifact(record, data, ptx, cached=False)

    def put_bytes(self, sha256: str, data: bytes) -> Path:
        """Keep bytes that came from elsewhere (the database); returns their path, ready to be loaded. Raises
        DiskFullError, HomeError."""
        path = self.blob_path(sha256)
        try:
            present = self._read_blob(sha256) is not None
        except OSError:
            present = False
        if not present:
            self._write(path, data)
        return path

    def sweep(self, *, grace_s: float = eviction.GRACE_S) -> eviction.Swept:
        """Remove the least recently used files where the cache is over its size."""
        with _written_lock:
            _written[self._root] = 0
        swept = eviction.sweep(self._root, self.limit_bytes, grace_s=grace_s)
        if swept.removed:
            _log.info("made room in the artifact cache", files=swept.removed, bytes=swept.bytes_after)
        return swept

    def _sweep_sometimes(self) -> None:
        with _written_lock:
            # Unknown: this process has not looked yet.
            due = _written.get(self._root, self.limit_bytes) >= self.limit_bytes * _SWEEP_SHARE
        if due:
            self.sweep()

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self._write_once(path, data)
        except OSError as error:
            failure = home_error(self._home, error)
            if not isinstance(failure, DiskFullError):
                raise failure from None
            # Somebody's disk is smaller than the limit: what was long not used may go.
            if not eviction.sweep(self._root, 0).removed:
                raise failure from None
            try:
                self._write_once(path, data)
            except OSError as again:
                raise home_error(self._home, again) from None
        with _written_lock:
            if self._root in _written:
                _written[self._root] += len(data)

    def _write_once(self, path: Path, data: bytes) -> None:
        self._clear(path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=eviction.PART_PREFIX)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _clear(self, path: Path) -> None:
        """Remove a folder in the place of a file, and a file in the place of a folder above it."""
        if path.is_dir():
            _drop(path)
        for folder in path.parents[: len(path.relative_to(self._home).parts) - 1]:
            if os.path.lexists(folder) and not folder.is_dir():  # a dangling link too
                _drop(folder)


def _sealed(record: dict[str, Any]) -> bytes:
    """A record as it is kept: with its schema, and the hash of it all."""
    return canonical({"schema": SCHEMA, "record": record, "record_sha256": digest(record)}).encode()


def _opened(text: bytes) -> dict[str, Any]:
    """The record that _sealed made the text of. Raises _Miss for another schema, ValueError, KeyError or
    TypeError for what was altered, RecursionError."""
    kept = json.loads(text)
    if kept["schema"] != SCHEMA:
        raise _Miss
    record: dict[str, Any] = kept["record"]
    if digest(record) != kept["record_sha256"]:
        raise ValueError("the record does not match its hash")
    return record


def _read(path: Path) -> bytes:
    """The bytes of a regular file. NoFileError for a folder, for a pipe or a device, which would be read for
    ever, and for what would fill the memory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise NoFileError(f"{path.name} is no file")
        if info.st_size > _MOST_BYTES:
            raise NoFileError(f"{path.name} has {info.st_size} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _drop(path: Path) -> None:
    """Remove what lies there, a folder too. A disk that does not let us is no error: it is a miss all the
    same."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@lru_cache(maxsize=4)
def _limit_of_setting(_text: str | None) -> int:
    """Reading all settings takes a millisecond, at each compile: once for each value of the variable."""
    return get_settings().cache_mib << 20


def _touch(path: Path) -> None:
    try:
        recent = abs(time.time() - path.stat().st_mtime) < _TOUCH_S
    except OSError:
        return
    if not recent:
        eviction.touch(path)


def _artifact(record: dict[str, Any], data: bytes, ptx: bytes | None, *, cached: bool) -> Artifact:
    recipe = record["recipe"]
    toolchain = recipe["toolchain"]
    return Artifact(
        sha256=record["sha256"],
        data=data,
        kind=recipe["kind"],
        arch=toolchain["arch"],
        entries=tuple(recipe["entries"]),
        recipe=recipe,
        toolchain=toolchain,
        log=record["log"],
        resources=record["resources"],
        compile_s=record["compile_s"],
        ptx=ptx,
        cached=cached,
    )
