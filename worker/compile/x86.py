"""How is C turned into the shared object of an x86 family, the same bytes everywhere?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_space.family import BuildSpec

from worker.compile.artifact import Artifact, Toolchain


def get_toolchain(arch: str, source: str) -> Toolchain:
    """The identity of compiler, flags and sources for one template. Raises CompilerMissingError."""
    raise NotImplementedError


def compile_kernel(build: BuildSpec, arch: str | None = None, *, home: Path | None = None) -> Artifact:
    """Build one kernel, or take it from the cache under `home` (default ROOFTILE_HOME).

    Raises CompileFailure (reason compile_error, compile_timeout, compile_memory, compile_crash),
    CompilerMissingError or DiskFullError.
    """
    raise NotImplementedError


def compile_pool(arch: str, *, home: Path | None = None) -> Artifact:
    """The thread pool of an arch."""
    raise NotImplementedError


def compile_tool(source: str, arch: str, entries: tuple[str, ...], *, home: Path | None = None) -> Artifact:
    """A helper of ours (x86/calibrate.c, x86/faultguard.c) as an artifact of kind `calibration`."""
    raise NotImplementedError


def rebuild(recipe: Mapping[str, Any], sha256: str, *, home: Path | None = None) -> Artifact:
    """The bytes of a known artifact from its recipe. Raises RebuildError where they would differ."""
    raise NotImplementedError
