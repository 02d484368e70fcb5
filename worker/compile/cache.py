"""Where do built artifacts lie so that a hit gives the same record as a miss, and a broken file heals?

`<home>/cache/artifacts/recipes/<recipe key>.json` names the bytes in `blobs/<sha256>`. Both are written
aside and renamed, bytes first, so that a record never names bytes that are not there. Every read checks the
hash; an entry that does not match is dropped with one warning and built again (AT-77, AT-79).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import structlog

from service.paths import home_error
from worker.compile.artifact import SCHEMA, Artifact, Recipe, canonical

_log = structlog.get_logger("rooftile.compile")


class ArtifactCache:
    """One user's cache under ROOFTILE_HOME."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._root = home / "cache" / "artifacts"

    def blob_path(self, sha256: str) -> Path:
        return self._root / "blobs" / sha256[:2] / f"{sha256}.so"

    def _recipe_path(self, key: str) -> Path:
        return self._root / "recipes" / key[:2] / f"{key}.json"

    def get(self, recipe: Recipe) -> Artifact | None:
        """The artifact of a recipe, or None. Never raises for what lies in the cache."""
        path = self._recipe_path(recipe.key)
        try:
            record: dict[str, Any] = json.loads(path.read_bytes())
            sha256 = str(record["sha256"])
            data = self._read_blob(sha256)
            if data is None or record["schema"] != SCHEMA or record["recipe"] != recipe.to_json():
                raise ValueError("the bytes do not match their record")
            return _artifact(record, data, cached=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("dropped a broken cache entry", recipe=recipe.key[:12], error=str(error))
            path.unlink(missing_ok=True)
            return None

    def get_bytes(self, sha256: str) -> bytes | None:
        """Bytes by their hash, checked."""
        try:
            return self._read_blob(sha256)
        except OSError:
            return None

    def _read_blob(self, sha256: str) -> bytes | None:
        path = self.blob_path(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != sha256:
            path.unlink(missing_ok=True)
            return None
        return data

    def put(
        self, recipe: Recipe, data: bytes, *, log: str, resources: dict[str, Any], compile_s: float
    ) -> Artifact:
        """Keep a fresh build and return the very record that a hit would return. Raises DiskFullError."""
        sha256 = hashlib.sha256(data).hexdigest()
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "sha256": sha256,
            "recipe": recipe.to_json(),
            "log": log,
            "resources": resources,
            "compile_s": compile_s,
        }
        self.put_bytes(sha256, data)
        self._write(self._recipe_path(recipe.key), canonical(record).encode())
        return _artifact(record, data, cached=False)

    def put_bytes(self, sha256: str, data: bytes) -> Path:
        """Keep bytes that came from elsewhere (the database); returns their path, ready to be loaded."""
        path = self.blob_path(sha256)
        try:
            present = self._read_blob(sha256) is not None
        except OSError:
            present = False
        if not present:
            self._write(path, data)
        return path

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise home_error(self._home, error) from None


def _artifact(record: dict[str, Any], data: bytes, *, cached: bool) -> Artifact:
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
        cached=cached,
    )
