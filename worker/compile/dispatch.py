"""Which compiler is an arch's: C for the CPU, or NVRTC?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from service.errors import DataMissingError
from worker.compile import cuda, x86
from worker.compile.artifact import Artifact, Recipe, Toolchain
from worker.compile.sandbox import Limits
from worker.compile.sources import Sources
from worker.errors import CompileFailure, RebuildError

if TYPE_CHECKING:
    from search_space.family import BuildSpec

C = TypeVar("C")


def get_toolchain(arch: str, source: str, *, root: Path | None = None) -> Toolchain:
    """The identity of compiler, flags and sources for one template. Raises CompilerMissingError."""
    if cuda.is_cuda(arch):
        return cuda.get_toolchain(arch, source, root=root)
    return x86.get_toolchain(arch, source, root=root)


def compile_kernel(
    build: BuildSpec,
    arch: str | None = None,
    *,
    home: Path | None = None,
    root: Path | None = None,
    limits: Limits | None = None,
) -> Artifact:
    """Build one kernel, or take it from the cache under `home` (default ROOFTILE_HOME).

    `root` is where templates lie (default: kernels/ of this installation). Raises CompileFailure with its
    reason, CompilerMissingError or DiskFullError.
    """
    if cuda.is_cuda(arch or build.arch):
        return cuda.compile_kernel(build, arch, home=home, root=root, limits=limits)
    return x86.compile_kernel(build, arch, home=home, root=root, limits=limits)


def rebuild(
    recipe: Mapping[str, Any], sha256: str, *, home: Path | None = None, root: Path | None = None
) -> Artifact:
    """The bytes of a known artifact from its recipe. Raises RebuildError where they would differ."""
    if cuda.is_cuda(str(recipe["toolchain"]["arch"])):
        return _rebuild(cuda.recipe_again, cuda.cached, recipe, sha256, home, root)
    return _rebuild(x86.recipe_again, x86.cached, recipe, sha256, home, root)


def _rebuild(
    again: Callable[[Mapping[str, Any], Path | None], tuple[C, Sources, Recipe]],
    cached: Callable[[C, Sources, Recipe, Path | None, Limits | None], Artifact],
    recipe: Mapping[str, Any],
    sha256: str,
    home: Path | None,
    root: Path | None,
) -> Artifact:
    cannot = f"The artifact {sha256[:12]} cannot be made again: "
    try:
        compiler, sources, today = again(recipe, root)
    except DataMissingError as error:
        raise RebuildError(f"{cannot}{error}") from None
    now, was = today.toolchain.to_json(), recipe["toolchain"]
    changed = sorted(name for name in now if now[name] != was.get(name))
    if changed:
        raise RebuildError(f"{cannot}its toolchain's {', '.join(changed)} changed.")
    try:
        try:
            artifact = cached(compiler, sources, today, home, None)
        except CompileFailure as failure:
            if not failure.killed:
                raise
            artifact = cached(compiler, sources, today, home, None)  # as the farm does
    except CompileFailure as failure:
        raise RebuildError(f"{cannot}{failure.message}") from None
    if artifact.sha256 != sha256:
        raise RebuildError(f"The recipe of {sha256[:12]} gives {artifact.sha256[:12]} here.")
    return artifact
