"""Which mistakes do we plant in our own kernels, to see whether the emulator finds them?

A mutation is a small change of the sources, made by program: a line dropped, a count off by one, two operands
exchanged. It names the schedule and problem at which the changed line runs. Each is compiled and run like a
candidate.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_space.schedule import Value

_ANY = (
    "dropped wait", "dropped barrier", "wrong swizzle", "wrong stage index", "wrong fragment",
    "wrong predicate", "stage reused early", "missing tail mask", "off-by-one k", "swapped operands",
)  # fmt: skip
VISIBLE = ("wrong tile", "32-bit offset", "wrong pitch", "wrong number")
"""Classes whose mistakes show in the numbers, in whatever order things happen, if only the problem is large
or odd enough. Counted apart: of the others at least half leave the numbers right in program order."""
_GROUPS = ("dropped commit", "wrong group count")
_ASYNCHRONOUS = (
    "dropped fence", "dropped arrive", "wrong parity", "wrong count", "wrong bytes",
    "wrong descriptor stride", "wrong multicast mask", "phase restarted", "bulk store without its fence",
    "missing setmaxnreg", "peer exits early",
)  # fmt: skip
CLASSES = {
    "gemm_sm80": (*_ANY, *_GROUPS, *VISIBLE),
    "gemm_sm70": (*_ANY, *VISIBLE),
    "gemm_sm90": (*_ANY, *_GROUPS, *_ASYNCHRONOUS, *VISIBLE),
}
"""Of mistakes, by family: sm_70 has no asynchronous copies, so nothing to commit and no groups to count."""


@dataclass(frozen=True)
class Edit:
    """In `file` (under kernels/cuda) the `nth` place (from 0) where `old` stands becomes `new`."""

    file: str
    old: str
    new: str
    nth: int = 0

    def apply(self, root: Path) -> None:
        """Change the file under `root`. ValueError where there is no such place: the kernel has moved on."""
        path = root / "cuda" / self.file
        text = path.read_text()
        at = -1
        for _ in range(self.nth + 1):
            at = text.find(self.old, at + 1)
            if at < 0:
                raise ValueError(f"{self.file} has no {self.nth + 1}. {self.old!r}")
        path.write_text(text[:at] + self.new + text[at + len(self.old) :])


@dataclass(frozen=True)
class Mutation:
    """One planted mistake. `values`: of the schedule at which it shows (default: the family's default);
    `problem`: what differs from a plain bf16 (gemm_sm70: f16) GEMM. `equivalent`: why it
    changes nothing, for one that is not counted."""

    family: str
    kind: str
    name: str
    edits: tuple[Edit, ...]
    values: Mapping[str, Value] = field(default_factory=dict)
    problem: Mapping[str, Any] = field(default_factory=dict)
    equivalent: str | None = None

    def sources(self, kernels: Path, root: Path) -> Path:
        """A copy of `kernels` under `root` with the mistake in it."""
        shutil.copytree(kernels / "cuda", root / "cuda", dirs_exist_ok=True)
        for edit in self.edits:
            edit.apply(root)
        return root


def mutations(family: str | None = None) -> Iterator[Mutation]:
    """All of them, or those of one family."""
    from bench.mutations.gemm_sm70 import MUTATIONS as SM70
    from bench.mutations.gemm_sm80 import MUTATIONS as SM80
    from bench.mutations.gemm_sm90 import MUTATIONS as SM90

    for m in (*SM80, *SM70, *SM90):
        if family is None or m.family == family:
            yield m
