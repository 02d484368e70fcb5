"""How is C turned into the shared object of an x86 family, the same bytes everywhere?

The template and its headers are laid out afresh in a scratch folder, the compiler runs there with relative
names, a fixed environment and no debug information, and what it may print of the folder is mapped to
/rooftile/kernels. So the bytes depend on the recipe alone: two builds in two folders give one sha256.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.errors import DiskFullError
from service.paths import Home, home_error
from service.settings import get_settings
from service.store.enums import TrialReason
from worker.compile import elf, sandbox
from worker.compile.artifact import Artifact, Recipe, Toolchain
from worker.compile.cache import ArtifactCache
from worker.compile.sandbox import Limits
from worker.compile.sources import VIRTUAL_ROOT, Sources, gather, include_dir
from worker.compile.toolchain import Compiler, base_flags, find_compiler
from worker.endings import killed_from_outside
from worker.errors import CompileFailure

if TYPE_CHECKING:
    from search_space.family import BuildSpec

POOL_SOURCE = "x86/pool.c"
POOL_ENTRIES = ("rt_pool_abi", "rt_pool_create", "rt_pool_run", "rt_pool_destroy")

# Virtual memory of one compiler process. Clang inside zig maps much more than it touches.
_MEMORY_BYTES = {"gcc": 2 << 30, "clang": 4 << 30, "zig": 16 << 30}
_OUT = "artifact.so"
_MOST_SYMBOLS = 50


def get_toolchain(arch: str, source: str, *, root: Path | None = None) -> Toolchain:
    """The identity of compiler, flags and sources for one template. Raises CompilerMissingError."""
    return _toolchain(find_compiler(), arch, gather(source, root))


def _toolchain(compiler: Compiler, arch: str, sources: Sources) -> Toolchain:
    return Toolchain(
        compiler=compiler.name,
        version=compiler.version,
        linker=compiler.linker,
        target=compiler.target,
        arch=arch,
        flags=base_flags(arch, compiler.name),
        sources_sha256=sources.sha256,
    )


def compile_kernel(
    build: BuildSpec,
    arch: str | None = None,
    *,
    home: Path | None = None,
    root: Path | None = None,
    limits: Limits | None = None,
) -> Artifact:
    """Build one kernel, or take it from the cache under `home` (default ROOFTILE_HOME).

    `root` is where templates lie (default: kernels/ of this installation). Raises CompileFailure (reason
    compile_error, compile_timeout, compile_memory or compile_crash), CompilerMissingError or DiskFullError.
    """
    compiler = find_compiler()
    sources = gather(build.source, root)
    recipe = Recipe(
        kind="kernel",
        source=build.source,
        defines=tuple((str(name), str(value)) for name, value in build.defines),
        flags=tuple(build.flags),
        entries=tuple(build.entries),
        toolchain=_toolchain(compiler, arch or build.arch, sources),
    )
    return cached(compiler, sources, recipe, home, limits)


def compile_pool(arch: str, *, home: Path | None = None) -> Artifact:
    """The thread pool of an arch."""
    return _tool("pool", POOL_SOURCE, arch, POOL_ENTRIES, home)


def compile_tool(source: str, arch: str, entries: tuple[str, ...], *, home: Path | None = None) -> Artifact:
    """A helper of ours (x86/calibrate.c, x86/faultguard.c) as an artifact of kind `calibration`."""
    return _tool("calibration", source, arch, entries, home)


def _tool(kind: str, source: str, arch: str, entries: tuple[str, ...], home: Path | None) -> Artifact:
    compiler = find_compiler()
    sources = gather(source)
    recipe = Recipe(kind, source, (), (), entries, _toolchain(compiler, arch, sources))
    return cached(compiler, sources, recipe, home, None)


def recipe_again(recipe: Mapping[str, Any], root: Path | None) -> tuple[Compiler, Sources, Recipe]:
    """A kept recipe with the compiler and sources of today. Raises DataMissingError, CompilerMissingError."""
    compiler = find_compiler()
    sources = gather(str(recipe["source"]), root)
    arch = str(recipe["toolchain"]["arch"])
    return compiler, sources, Recipe.again(recipe, _toolchain(compiler, arch, sources))


def cached(
    compiler: Compiler, sources: Sources, recipe: Recipe, home: Path | None, limits: Limits | None
) -> Artifact:
    """The artifact of a recipe from the cache, or built and kept."""
    root = get_settings().home if home is None else home
    cache = ArtifactCache(root)
    known = cache.get(recipe)
    if known is not None:
        return known
    work = Home(root).work
    try:
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work, prefix="compile-", ignore_cleanup_errors=True) as folder:
            started = time.monotonic()
            data, log = _build(compiler, sources, recipe, Path(folder), limits)
            compile_s = time.monotonic() - started
            resources = _static_gate(data, recipe, log)
    except OSError as error:
        raise home_error(root, error) from None
    return cache.put(recipe, data, log=log, resources=resources, compile_s=compile_s)


def _build(
    compiler: Compiler, sources: Sources, recipe: Recipe, folder: Path, limits: Limits | None
) -> tuple[bytes, str]:
    sources.write(folder)
    if limits is None:
        limits = Limits(memory_bytes=_MEMORY_BYTES[compiler.name])
    command = [
        *compiler.command,
        *recipe.toolchain.flags,
        *recipe.flags,
        f"-ffile-prefix-map={folder}={VIRTUAL_ROOT}",
        f"-I{include_dir(recipe.source)}",
        *(f"-D{name}={value}" if value != "" else f"-D{name}" for name, value in recipe.defines),
        recipe.source,
        "-o",
        _OUT,
        "-lm",
    ]
    end = sandbox.run(command, folder=folder, environment=_environment(compiler, folder), limits=limits)
    log = end.log.replace(str(folder), VIRTUAL_ROOT)
    out = folder / _OUT
    if end.returncode == 0 and not end.timed_out and out.is_file():
        return out.read_bytes(), log
    evidence: dict[str, object] = {
        "log": log,
        "returncode": end.returncode,
        "wall_s": round(end.wall_s, 3),
        "compiler": f"{compiler.name} {compiler.version}",
        "limits": {
            "cpu_s": limits.cpu_s,
            "wall_s": limits.wall_s,
            "memory_bytes": limits.memory_bytes,
        },
    }
    reason, message = _why(end, limits)
    if reason is None:
        raise DiskFullError(
            f"There is no room left for the compiler's files under {folder.parent}; "
            "free some or set ROOFTILE_HOME elsewhere."
        )
    raise CompileFailure(reason, message, evidence, killed=message == _KILLED)


_KILLED = "The compiler was killed, as a system short of memory does."
# What a driver says of its cc1 that somebody ended (gcc: "Killed signal terminated program cc1").
_KILLED_WORDS = ("Killed signal", "Terminated signal", "unable to execute command: Killed")
_TIME_WORDS = ("CPU time limit exceeded", "signal 24", "SIGXCPU")
_MEMORY_WORDS = (
    "virtual memory exhausted",
    "out of memory",
    "Cannot allocate memory",
    "memory exhausted",
    "bad_alloc",
    "OutOfMemory",
)


def _why(end: sandbox.Finished, limits: Limits) -> tuple[TrialReason | None, str]:
    """What the end of a compile that gave nothing means; None for a full disk."""
    if end.timed_out:
        return TrialReason.COMPILE_TIMEOUT, f"The compiler was killed after {limits.wall_s:g} s."
    if any(word in end.log for word in _TIME_WORDS):
        return TrialReason.COMPILE_TIMEOUT, f"The compiler used up its {limits.cpu_s} s of CPU time."
    if "No space left on device" in end.log or "Disk quota exceeded" in end.log:
        return None, ""
    if any(word in end.log for word in _MEMORY_WORDS):
        mib = limits.memory_bytes >> 20
        return TrialReason.COMPILE_MEMORY, f"The compiler needed more than {mib} MiB of memory."
    # Where the driver itself is what died, there are no words.
    if killed_from_outside(end.returncode) or any(word in end.log for word in _KILLED_WORDS):
        return TrialReason.COMPILE_MEMORY, _KILLED
    if end.returncode > 128 or end.returncode < 0 or "internal compiler error" in end.log:
        return TrialReason.COMPILE_CRASH, "The compiler itself crashed."
    first = next((line for line in end.log.splitlines() if "error" in line), "")
    return TrialReason.COMPILE_ERROR, f"The compiler refused the source: {first.strip()[:300]}"


def _environment(compiler: Compiler, folder: Path) -> dict[str, str]:
    """Only what a compile needs, so that nobody's CPATH or CFLAGS is in the bytes."""
    keep = ("PATH", "LD_LIBRARY_PATH", "HOME", "SYSTEMROOT")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    environment |= {"LC_ALL": "C", "TMPDIR": str(folder), "SOURCE_DATE_EPOCH": "0"}
    if compiler.name == "zig":
        # Zig's own cache saves it a second a compile, and is safe to share and to lose.
        cache = str(folder.parent.parent / "cache" / "zig")
        environment |= {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    return environment


def _static_gate(data: bytes, recipe: Recipe, log: str) -> dict[str, Any]:
    """The symbols that must be there are; returns what the file says about itself."""
    try:
        summary = elf.summarise(data)
    except elf.ElfError as error:
        raise CompileFailure(
            TrialReason.COMPILE_ERROR, f"The compiler's output is {error}.", {"log": log}
        ) from None
    missing = [entry for entry in recipe.entries if entry not in summary.exported]
    if missing:
        found = list(summary.exported[:_MOST_SYMBOLS])
        raise CompileFailure(
            TrialReason.COMPILE_ERROR,
            f"The artifact exports no {', '.join(missing)}; it exports {', '.join(found) or 'nothing'}.",
            {"log": log, "kind": "bad_symbol", "missing": missing, "exported": found},
        )
    return {
        "text_bytes": summary.text_bytes,
        "data_bytes": summary.data_bytes,
        "bss_bytes": summary.bss_bytes,
        "size_bytes": len(data),
        "exported": list(summary.exported[:_MOST_SYMBOLS]),
        "undefined": list(summary.undefined[:_MOST_SYMBOLS]),
        "needed": list(summary.needed),
    }
