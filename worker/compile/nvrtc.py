"""Which NVRTC builds for an arch, where is its library, and what is its identity?

CUDA 13 dropped sm_70, and NVRTC 12.9 is the last that builds it; everything else is for NVRTC 13, or for 12.9
where only that is installed, as for a driver of CUDA 12, which is not promised to load what 13 writes.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

from rooftile.device import CUDA_ARCHS

from service.errors import CompilerMissingError
from service.paths import nvrtc_library
from worker.compile.nvrtc_host import HostLostError, NvrtcHost, Request, host_of
from worker.compile.sandbox import Limits
from worker.endings import killed_from_outside

# The words of service/compilers.py, which a worker may not import.
HOW_TO_GET_ONE = (
    "install the extra `compile`: `pip install -e '.[compile]'` in a clone, else "
    "`pip install 'rooftile-server[compile]'`"
)


@dataclass(frozen=True)
class Generation:
    """One major version of NVRTC."""

    major: int
    probe_arch: str
    """A virtual arch that each release of it knows."""


_NVRTC_12 = Generation(12, "compute_70")
_NVRTC_13 = Generation(13, "compute_80")
_ONLY_12 = ("sm_70",)


@dataclass(frozen=True)
class Nvrtc:
    """A library that loads and compiles, and the version that names it in a Toolchain."""

    library: str
    version: str
    """Of the release that its own output names, such as 13.5.37: the same for wheel and toolkit."""

    @property
    def host(self) -> NvrtcHost:
        return host_of(self.library)


_known: dict[tuple[str, int, int], Nvrtc] = {}
_lock = threading.Lock()


def generations_of(arch: str) -> tuple[Generation, ...]:
    """Which major versions build for an arch, the preferred one first."""
    return (_NVRTC_12,) if arch in _ONLY_12 else (_NVRTC_13, _NVRTC_12)


def find_library(arch: str) -> tuple[str, Generation] | None:
    """Path or loader name of the library for an arch; nothing is started. None where there is none."""
    for generation in generations_of(arch):
        library = nvrtc_library(generation.major)
        if library is not None:
            return library, generation
    return None


def find_nvrtc(arch: str) -> Nvrtc:
    """The NVRTC for an arch, asked once for its version. Raises CompilerMissingError.

    What is missing or broken is not remembered: somebody may install it while a worker runs.
    """
    found = find_library(arch)
    if found is None:
        major = generations_of(arch)[0].major
        raise CompilerMissingError(
            f"NVRTC {major}, which compiles for {arch}, was not found: {HOW_TO_GET_ONE}."
        )
    library, generation = found
    with _lock:
        key = _file_key(library)
        known = _known.get(key)
        if known is None:
            known = _known[key] = Nvrtc(library, _ask_version(library, generation))
        return known


def cuda_archs_here() -> tuple[str, ...]:
    """The CUDA archs that this machine has an NVRTC for; cheap, nothing is loaded."""
    return tuple(arch for arch in CUDA_ARCHS if find_library(arch) is not None)


def _file_key(library: str) -> tuple[str, int, int]:
    """Another file under the same path is another compiler."""
    try:
        info = Path(library).stat()
    except OSError:
        return library, 0, 0
    return library, info.st_mtime_ns, info.st_size


# "// Cuda compilation tools, release 13.5, V13.5.37" at the head of what it emits. nvrtcVersion() would say
# 13.5 and leave out which build.
_RELEASE = re.compile(rb"Cuda compilation tools, release [\d.]+, V(\d+(?:\.\d+)+)")
_PROBE = 'extern "C" __global__ void rooftile_probe(float *x) { *x = 1.0f; }\n'


def _ask_version(library: str, generation: Generation) -> str:
    """Compile a line, which also shows at the start, and not at a first trial, that it can."""
    request = Request("/rooftile/probe.cu", _PROBE, (), (f"-arch={generation.probe_arch}",))
    limits = Limits(cpu_s=20, wall_s=60.0)
    host = host_of(library)
    try:
        outcome = host.run(request, limits)
        if killed_from_outside(outcome.status) and not outcome.timed_out:
            outcome = host.run(request, limits)  # by a system short of memory, say, not by the line itself
    except HostLostError as error:
        raise CompilerMissingError(f"NVRTC ({library}) cannot be run: {error}.") from None
    match = _RELEASE.search(outcome.ptx)
    if match is None:
        said = " ".join((outcome.log or outcome.output).split())[:300] or f"status {outcome.status}"
        raise CompilerMissingError(f"NVRTC ({library}) does not compile: {said}; {HOW_TO_GET_ONE}.")
    return match[1].decode()
