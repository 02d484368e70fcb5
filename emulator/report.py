"""What does a run in the emulator tell: which faults, at which place, with which counters?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FaultKind(StrEnum):
    """Everything a kernel can be accused of. Closed: each value has its check."""

    RACE = "race"
    """Two accesses to the same bytes, at least one a write, that nothing orders; or bytes of a copy that is
    still under way were touched."""
    READ_UNWRITTEN = "read_unwritten"
    """Shared memory or workspace was read that nobody had written."""
    OUT_OF_BOUNDS = "out_of_bounds"
    """An access outside every buffer, in the gap between two rows of one, or a write to an input."""
    MISALIGNED = "misaligned"
    """An address that is no multiple of what the instruction needs."""
    NOT_WRITTEN = "not_written"
    """An element of the output that no thread wrote."""
    DEADLOCK = "deadlock"
    """No thread can go on."""
    BARRIER_COUNT = "barrier_count"
    """A barrier was named with a count that cannot be, or that its participants do not agree on; an mbarrier
    that is none (not initialised), or a phase of it that is gone."""
    DIVERGENCE = "divergence"
    """An instruction that a whole warp must execute together was reached by part of it."""
    OUTSTANDING_WORK = "outstanding_work"
    """A thread ended while its asynchronous copies were not waited for."""
    PROXY = "proxy"
    """An asynchronous unit (TMA, WGMMA) reads or overwrites what threads wrote, and no fence.proxy.async is
    on the way."""
    REGISTERS = "registers"
    """Registers of a WGMMA under way were touched, or not fenced before it; setmaxnreg with a number that
    cannot be, or not by a whole warpgroup."""
    DESCRIPTOR = "descriptor"
    """A tensor map or matrix descriptor that is none, or that says what cannot be."""
    PEER = "peer"
    """A CTA of the cluster was accessed that does not exist or has ended, or ended while one may come."""
    TRAP = "trap"
    """The kernel itself gave up (trap, a failed assertion)."""
    LIMIT = "limit"
    """It did not end within the limit of instructions or seconds."""


@dataclass(frozen=True)
class Region:
    """A named area of dynamic shared memory, so that a message can say `A, stage 2`. Bytes from the start of
    dynamic shared memory; `stages` areas of `stage_bytes` one after the other."""

    name: str
    offset: int
    stage_bytes: int
    stages: int = 1


@dataclass(frozen=True)
class Fault:
    """One accusation. `message` is a whole sentence; the rest is what it was made from."""

    kind: FaultKind
    message: str
    file: str | None = None
    line: int | None = None
    ptx_line: int | None = None
    step: int = 0
    """Which step of the plan."""
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lane: int | None = None
    buffer: str | None = None
    stage: int | None = None
    other_line: int | None = None
    """Source line of the other access of a race."""
    count: int = 1
    """How often this very place was accused of this."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object: everything that is known."""
        found: dict[str, Any] = {"kind": str(self.kind), "message": self.message}
        for name in (
            "file",
            "line",
            "ptx_line",
            "step",
            "warp",
            "lane",
            "buffer",
            "stage",
            "other_line",
            "count",
        ):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        if self.cta is not None:
            found["cta"] = list(self.cta)
        return found


@dataclass(frozen=True)
class Order:
    """In which legal order asynchronous work and warps take their turns.

    early    copies land when they are issued; warps run together
    late     copies land only when a wait forces them; warps run together
    ahead    late, and the lowest warp that can run goes on until it is blocked
    behind   late, and the highest warp that can run goes on until it is blocked
    mixed    copies into shared memory land when they are issued; products and stores only when a wait forces
             them
    random   each copy lands, and each warp runs, when the seed says; the same seed gives the same run
    """

    kind: str = "late"
    seed: int = 0

    KINDS = ("early", "late", "ahead", "behind", "random", "mixed")

    def __post_init__(self) -> None:
        if self.kind not in self.KINDS:
            raise ValueError(f"order {self.kind!r} is not one of {', '.join(self.KINDS)}")

    def __str__(self) -> str:
        return f"random:{self.seed}" if self.kind == "random" else self.kind


@dataclass(frozen=True)
class Limits:
    """When a run is given up: warp instructions, and seconds of this process."""

    instructions: int = 50_000_000
    seconds: float = 300.0


@dataclass(frozen=True)
class Report:
    """The outcome of a run. Right results are for the caller to judge: the outputs were written in place."""

    faults: tuple[Fault, ...]
    counters: Mapping[str, Any] = field(default_factory=dict)
    instructions: int = 0
    """Warp instructions executed."""
    seconds: float = 0.0
    order: Order = Order()

    @property
    def clean(self) -> bool:
        """Nothing to accuse."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "faults": [f.to_json() for f in self.faults],
            "counters": dict(self.counters),
            "instructions": self.instructions,
            "seconds": self.seconds,
            "order": str(self.order),
        }
