"""What comes out of a compile, and what is enough to make it again?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


def canonical(value: object) -> str:
    """One text for one value: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """sha256 of the canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@dataclass(frozen=True)
class Toolchain:
    """Compiler, version, flags and the hash of the template with every header it includes. No paths."""

    compiler: str  # gcc | clang | zig | nvrtc
    version: str
    linker: str  # empty for nvrtc, whose assembler is in it
    target: str  # x86_64-linux-gnu | nvptx64
    arch: str
    flags: tuple[str, ...]
    sources_sha256: str

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "compiler": self.compiler,
            "version": self.version,
            "linker": self.linker,
            "target": self.target,
            "arch": self.arch,
            "flags": list(self.flags),
            "sources_sha256": self.sources_sha256,
        }

    @property
    def key(self) -> str:
        return digest(self.to_json())


@dataclass(frozen=True)
class Recipe:
    """All that decides an artifact's bytes."""

    kind: str  # kernel | pool | calibration
    source: str  # relative to kernels/, as x86/gemm.c or cuda/gemm/gemm_sm80.cu
    defines: tuple[tuple[str, str], ...]
    flags: tuple[str, ...]
    entries: tuple[str, ...]
    toolchain: Toolchain

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "source": self.source,
            "defines": [list(pair) for pair in self.defines],
            "flags": list(self.flags),
            "entries": list(self.entries),
            "toolchain": self.toolchain.to_json(),
        }

    @classmethod
    def again(cls, was: Mapping[str, Any], toolchain: Toolchain) -> Recipe:
        """A kept recipe's JSON with the toolchain of today."""
        return cls(
            kind=str(was["kind"]),
            source=str(was["source"]),
            defines=tuple((str(name), str(value)) for name, value in was["defines"]),
            flags=tuple(str(flag) for flag in was["flags"]),
            entries=tuple(str(entry) for entry in was["entries"]),
            toolchain=toolchain,
        )

    @property
    def key(self) -> str:
        return digest(self.to_json())


@dataclass(frozen=True)
class Artifact:
    """The bytes that run, named by their sha256, with the record that a hit and a miss give alike."""

    sha256: str
    data: bytes = field(repr=False)
    kind: str
    arch: str
    entries: tuple[str, ...]
    recipe: Mapping[str, Any] = field(repr=False)
    toolchain: Mapping[str, Any] = field(repr=False)
    log: str = field(repr=False)
    resources: Mapping[str, Any] = field(repr=False)
    compile_s: float
    ptx: bytes | None = field(default=None, repr=False)
    """The text that a cubin was assembled from, by the same call; None for machine code of a CPU."""
    cached: bool = field(default=False, compare=False)
