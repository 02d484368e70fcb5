"""Which NVRTC builds for an arch, where is its library, and what is its identity?

CUDA 13 dropped sm_70, and NVRTC 12.9 is the last that builds it; everything else is for NVRTC 13, or for 12.9
where only that is installed, as for a driver of CUDA 12, which is not promised to load what 13 writes. The
wheels of NVIDIA first, so that an installation of ours means the same toolchain everywhere, then what the
loader finds.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rooftile.device import CUDA_ARCHS

from service.errors import CompilerMissingError
from worker.compile.nvrtc_host import NvrtcHost, Outcome, Request, host_of
from worker.compile.sandbox import Limits

HOW_TO_GET_ONE = "install the extra `compile`: pip install 'rooftile-server[compile]'"


@dataclass(frozen=True)
class Generation:
    """One major version of NVRTC and where it may lie."""

    major: int
    packages: tuple[str, ...]
    """Namespace packages of the wheels whose folder `lib` holds the library."""
    soname: str
    probe_arch: str
    """A virtual arch that each release of it knows."""


_NVRTC_12 = Generation(12, ("nvidia.cuda_nvrtc",), "libnvrtc.so.12", "compute_70")
_NVRTC_13 = Generation(13, ("nvidia.cu13", "nvidia.cuda_nvrtc"), "libnvrtc.so.13", "compute_80")
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
        library = _library(generation)
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


def _library(generation: Generation) -> str | None:
    for package in generation.packages:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            path = Path(folder) / "lib" / generation.soname
            if path.is_file():
                return str(path)
    return generation.soname if _on_loader_path(generation.soname) else None


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


def _on_loader_path(soname: str) -> bool:
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any((Path(folder) / soname).is_file() for folder in folders) or soname in _loader_cache()


@cache
def _loader_cache() -> frozenset[str]:
    """Names that ld.so knows. Its own table, because opening the library to see would map 140 MB here."""
    for program in ("ldconfig", "/sbin/ldconfig"):
        try:
            done = subprocess.run([program, "-p"], capture_output=True, timeout=10.0, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        return frozenset(line.split()[0] for line in done.stdout.decode(errors="replace").splitlines()[1:])
    return frozenset()


# "// Cuda compilation tools, release 13.5, V13.5.37" at the head of what it emits. nvrtcVersion() would say
# 13.5 and leave out which build.
_RELEASE = re.compile(rb"Cuda compilation tools, release [\d.]+, V(\d+(?:\.\d+)+)")
_PROBE = 'extern "C" __global__ void rooftile_probe(float *x) { *x = 1.0f; }\n'


def _ask_version(library: str, generation: Generation) -> str:
    """Compile a line, which also shows at the start, and not at a first trial, that it can."""
    request = Request("/rooftile/probe.cu", _PROBE, (), (f"-arch={generation.probe_arch}",))
    limits = Limits(cpu_s=20, wall_s=60.0)
    outcome: Outcome = host_of(library).run(request, limits)
    match = _RELEASE.search(outcome.ptx)
    if match is None:
        said = " ".join((outcome.log or outcome.output).split())[:300] or f"status {outcome.status}"
        raise CompilerMissingError(f"NVRTC ({library}) does not compile: {said}; {HOW_TO_GET_ONE}.")
    return match[1].decode()
