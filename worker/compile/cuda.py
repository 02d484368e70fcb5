"""How is a CUDA template turned into a cubin with its PTX, the same bytes everywhere?

One NVRTC call in a process that can be killed gives both. Sources go in from memory under virtual names, so
that line information reads /rooftile/kernels/... wherever the files lie, and the bytes depend on the recipe
alone. The log is data: registers, spills, stack, barriers of each kernel; spills and serialised matrix
instructions reject the schedule.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.settings import get_settings
from service.store.enums import TrialReason
from worker.compile import cubin, ptxas_log
from worker.compile.artifact import Artifact, Recipe, Toolchain
from worker.compile.cache import ArtifactCache
from worker.compile.nvrtc import Nvrtc, find_nvrtc
from worker.compile.nvrtc_host import HostLostError, Outcome, Request
from worker.compile.nvrtc_zygote import MEMORY_EXIT
from worker.compile.sandbox import Limits, shorten
from worker.compile.sources import VIRTUAL_ROOT, Sources, gather
from worker.endings import killed_from_outside
from worker.errors import CompileFailure

if TYPE_CHECKING:
    from search_space.family import BuildSpec

DEFAULT_LIMITS = Limits()

# nvrtc.h, enum nvrtcResult.
_OUT_OF_MEMORY, _INVALID_OPTION, _NO_BUILTINS = 1, 5, 7
_MOST_NAMES = 50
# A limit on the address space is met by an allocation that no longer fits, so the peak stays below it.
_NEAR_LIMIT = 0.85


def base_flags(arch: str) -> tuple[str, ...]:
    """All options of a compile but those of its BuildSpec.

    Others were tried on a GEMM of 128x128x32 tiles and cost or save nothing that can be measured: --minimal,
    -default-device, --no-source-include, --split-compile, --dopt. --no-cache: what NVRTC may keep by itself
    would be neither bounded nor checked.
    """
    return ("--std=c++17", "-lineinfo", f"-arch={arch}", "--ptxas-options=-v", "--no-cache")


def is_cuda(arch: str) -> bool:
    """Whether an arch, known or not, is one of NVIDIA's."""
    return arch.startswith("sm_")


def get_toolchain(arch: str, source: str, *, root: Path | None = None) -> Toolchain:
    """The identity of compiler, flags and sources for one template. Raises CompilerMissingError."""
    return _toolchain(find_nvrtc(arch), arch, gather(source, root))


def _toolchain(nvrtc: Nvrtc, arch: str, sources: Sources) -> Toolchain:
    return Toolchain(
        compiler="nvrtc",
        version=nvrtc.version,
        linker="",
        target="nvptx64",
        arch=arch,
        flags=base_flags(arch),
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
    spills, resource_limit, compile_error, compile_timeout, compile_memory, compile_crash, or
    compiler_missing for an arch that this NVRTC does not know), CompilerMissingError or DiskFullError.
    """
    arch = arch or build.arch
    nvrtc = find_nvrtc(arch)
    sources = gather(build.source, root)
    recipe = Recipe(
        kind="kernel",
        source=build.source,
        defines=tuple((str(name), str(value)) for name, value in build.defines),
        flags=tuple(build.flags),
        entries=tuple(build.entries),
        toolchain=_toolchain(nvrtc, arch, sources),
    )
    return cached(nvrtc, sources, recipe, home, limits)


def recipe_again(recipe: Mapping[str, Any], root: Path | None) -> tuple[Nvrtc, Sources, Recipe]:
    """A kept recipe with the compiler and sources of today. Raises DataMissingError, CompilerMissingError."""
    arch = str(recipe["toolchain"]["arch"])
    nvrtc = find_nvrtc(arch)
    sources = gather(str(recipe["source"]), root)
    return nvrtc, sources, Recipe.again(recipe, _toolchain(nvrtc, arch, sources))


def cached(
    nvrtc: Nvrtc, sources: Sources, recipe: Recipe, home: Path | None, limits: Limits | None
) -> Artifact:
    """The artifact of a recipe from the cache, or built and kept."""
    cache = ArtifactCache(get_settings().home if home is None else home)
    known = cache.get(recipe)
    if known is not None:
        return known
    started = time.monotonic()
    outcome = _call(nvrtc, sources, recipe, limits or DEFAULT_LIMITS)
    log = _log(outcome)
    resources = _static_gate(outcome, recipe, log)
    compile_s = time.monotonic() - started
    return cache.put(
        recipe,
        outcome.cubin,
        ptx=outcome.ptx,
        log=shorten(log.encode()),
        resources=resources,
        compile_s=compile_s,
    )


def _call(nvrtc: Nvrtc, sources: Sources, recipe: Recipe, limits: Limits) -> Outcome:
    main = f"{VIRTUAL_ROOT}/{recipe.source}"
    try:
        texts = dict(sources.virtual())
    except UnicodeDecodeError as error:
        raise CompileFailure(
            TrialReason.COMPILE_ERROR, f"A source of {recipe.source} is not UTF-8: {error}.", {}
        ) from None
    broken = [name for name, text in texts.items() if "\0" in text]
    if broken:
        # NVRTC takes C strings: it would compile what comes before, without a word.
        raise CompileFailure(TrialReason.COMPILE_ERROR, f"{broken[0]} holds a NUL byte.", {"file": broken[0]})
    options = [*recipe.toolchain.flags, *recipe.flags]
    options += [f"-D{name}={value}" if value != "" else f"-D{name}" for name, value in recipe.defines]
    headers = tuple((name, text) for name, text in texts.items() if name != main)
    request = Request(main, texts[main], headers, tuple(options))
    try:
        outcome = nvrtc.host.run(request, limits)
    except HostLostError as error:
        # Twice: it is the system that kills, as it does when memory is short.
        message = f"The processes that run NVRTC were killed twice: {error}."
        raise CompileFailure(TrialReason.COMPILE_MEMORY, message, {"compiler": _name(nvrtc)}) from None
    if outcome.status == 0 and outcome.result == 0 and outcome.cubin:
        return outcome
    reason, message = _why(outcome, nvrtc, recipe, limits)
    killed = message == _KILLED
    raise CompileFailure(reason, message, _evidence(outcome, nvrtc, limits), killed=killed)


def _name(nvrtc: Nvrtc) -> str:
    return f"nvrtc {nvrtc.version}"


def _log(outcome: Outcome) -> str:
    """What the compiler said, with what library and process printed beside it."""
    return ptxas_log.tidy(f"{outcome.log}\n{outcome.output}")


def _evidence(outcome: Outcome, nvrtc: Nvrtc, limits: Limits) -> dict[str, object]:
    return {
        "log": shorten(_log(outcome).encode()),
        "returncode": outcome.status,
        "nvrtc_result": outcome.result,
        "wall_s": round(outcome.wall_s, 3),
        "cpu_s": round(outcome.cpu_s, 3),
        "peak_bytes": outcome.peak_bytes,
        "compiler": _name(nvrtc),
        "limits": {
            "cpu_s": limits.cpu_s,
            "wall_s": limits.wall_s,
            "memory_bytes": limits.memory_bytes,
        },
    }


_MEMORY_WORDS = re.compile(
    r"out of memory|Memory allocation failure|bad_alloc|Cannot allocate memory|failed to map segment", re.I
)
_ARCH_WORDS = re.compile(r"(invalid|unsupported|unknown).*(--gpu-architecture|-arch|sm_|architecture)", re.I)
_SHARED_WORDS = re.compile(r"uses too much (shared|local|param|constant)[^\n]*", re.I)
_KILLED = "NVRTC was killed, as a system short of memory does."
_ENDED_BY_ITSELF = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)


def _why(outcome: Outcome, nvrtc: Nvrtc, recipe: Recipe, limits: Limits) -> tuple[TrialReason, str]:
    """What the end of a call that gave no cubin means."""
    log = _log(outcome)
    near = outcome.peak_bytes >= _NEAR_LIMIT * limits.memory_bytes
    silent = not log.strip() or outcome.result == _NO_BUILTINS
    if outcome.timed_out:
        return TrialReason.COMPILE_TIMEOUT, f"NVRTC was killed after {limits.wall_s:g} s."
    if outcome.status == -signal.SIGXCPU or (
        outcome.status == -signal.SIGKILL and outcome.cpu_s >= limits.cpu_s
    ):
        return TrialReason.COMPILE_TIMEOUT, f"NVRTC used up its {limits.cpu_s} s of CPU time."
    if (
        outcome.status == MEMORY_EXIT
        or outcome.result == _OUT_OF_MEMORY
        or _MEMORY_WORDS.search(log)
        or (near and (outcome.status in _ENDED_BY_ITSELF or (outcome.result and silent)))
    ):
        mib = limits.memory_bytes >> 20
        return TrialReason.COMPILE_MEMORY, f"NVRTC needed more than {mib} MiB of memory."
    if killed_from_outside(outcome.status):
        return TrialReason.COMPILE_MEMORY, _KILLED
    if outcome.status == -signal.SIGXFSZ:
        mib = limits.file_bytes >> 20
        return TrialReason.COMPILE_ERROR, f"The cubin and its PTX are larger than {mib} MiB."
    if outcome.status != 0:
        how = f"by signal {-outcome.status}" if outcome.status < 0 else f"with status {outcome.status}"
        return TrialReason.COMPILE_CRASH, f"NVRTC itself crashed: its process ended {how}."
    arch = recipe.toolchain.arch
    if outcome.result == _INVALID_OPTION and _ARCH_WORDS.search(log):
        return TrialReason.COMPILER_MISSING, f"NVRTC {nvrtc.version} does not know the arch {arch}."
    serious = ptxas_log.parse(log).serious
    if serious:
        return TrialReason.SPILLS, _advice_in_words(serious)
    if match := _SHARED_WORDS.search(log):
        return TrialReason.RESOURCE_LIMIT, f"ptxas refused the kernel: it {match[0].strip()}."
    if outcome.result == 0:
        return TrialReason.COMPILE_ERROR, "NVRTC said success and gave no cubin."
    first = next((line for line in log.splitlines() if re.search(r"\b(error|fatal)\b", line)), "no message")
    return TrialReason.COMPILE_ERROR, f"NVRTC refused the source: {first.strip()[:300]}"


def _advice_in_words(advice: tuple[tuple[str, str], ...]) -> str:
    codes = ", ".join(code for code, _ in advice)
    return f"ptxas gave advice {codes}: {advice[0][1][:300]}"


def _static_gate(outcome: Outcome, recipe: Recipe, log: str) -> dict[str, Any]:
    """Right arch, every entry there, no spills, no serious advice; returns what the kernels need.

    `entries` has every kernel by name; beside it the largest of each number over all of them, and the sum of
    the spills, so that one look tells.
    """

    def refuse(reason: TrialReason, message: str, **more: object) -> CompileFailure:
        return CompileFailure(reason, message, {"log": shorten(log.encode()), **more})

    try:
        summary = cubin.summarise(outcome.cubin)
    except cubin.CubinError as error:
        raise refuse(TrialReason.COMPILE_ERROR, f"NVRTC's output is {error}.") from None
    arch = recipe.toolchain.arch
    if summary.sm != cubin.arch_number(arch):
        message = f"The cubin is for sm_{summary.sm}, and {arch} was asked for."
        raise refuse(TrialReason.COMPILE_ERROR, message, kind="bad_arch", sm=summary.sm)
    missing = [entry for entry in recipe.entries if entry not in summary.entries]
    if missing:
        found = list(summary.entries[:_MOST_NAMES])
        message = f"The cubin has no kernel {', '.join(missing)}; it has {', '.join(found) or 'none'}."
        raise refuse(TrialReason.COMPILE_ERROR, message, kind="bad_symbol", missing=missing, exported=found)
    report = ptxas_log.parse(log)
    silent = [entry for entry in recipe.entries if report.entries.get(entry, _NOTHING).registers == 0]
    if silent:
        message = f"ptxas reported no resources of {', '.join(silent)}."
        raise refuse(TrialReason.COMPILE_ERROR, message, kind="bad_log")
    entries = {name: each.to_json() for name, each in sorted(report.entries.items())}
    if report.spill_bytes:
        where = {**report.entries, **report.functions}
        stores = sum(each.spill_stores_bytes for each in where.values())
        loads = sum(each.spill_loads_bytes for each in where.values())
        message = f"Registers do not suffice: {stores} bytes of spill stores, {loads} bytes of spill loads."
        raise refuse(TrialReason.SPILLS, message, kind="spills", entries=entries)
    if report.serious:
        codes = [code for code, _ in report.serious]
        message = _advice_in_words(report.serious)
        raise refuse(TrialReason.SPILLS, message, kind="advice", codes=codes, entries=entries)
    most = {name: max(each[name] for each in entries.values()) for name in _NOTHING.to_json()}
    return {
        **most,
        "entries": entries,
        "sm": summary.sm,
        "size_bytes": len(outcome.cubin),
        "ptx_bytes": len(outcome.ptx),
        "exported": list(summary.entries[:_MOST_NAMES]),
        "advice": [code for code, _ in report.advice],
    }


_NOTHING = ptxas_log.EntryResources()
