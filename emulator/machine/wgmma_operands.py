"""What does a WGMMA name: its form, and where its matrices lie in shared memory?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from emulator.arith import warpgroup as arith
from emulator.machine import access
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.machine.wave import Array, Wave

Places = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Of an operand: offsets of its pieces, and the watched pieces of shared memory that they are."""


@dataclass(frozen=True)
class Form:
    """What an instruction says, but for its values."""

    site: int
    n: int
    d_type: str
    a_type: str
    b_type: str
    d: tuple[int, ...]
    """Registers."""
    a: tuple[int, ...]
    """Registers of A; none where it lies in shared memory."""
    signs: tuple[int, int]
    mn_major: tuple[bool, bool]
    satfinite: bool
    flops: int


class OperandPlaces:
    """Where matrix descriptors point, in the CTAs of a wave. Each is worked out once."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        self._known: dict[tuple[int, int, bool], Places] = {}
        """By descriptor, extent and majorness: of a CTA."""

    def find(
        self, bits: int, extent: int, mn_major: bool, warp: int, site: int
    ) -> Places | None:
        """Offsets of an operand's pieces in the wave's shared memory, and all their granules; None, and a
        fault, where it cannot be."""
        w = self._w
        found = self._known.get((bits, extent, mn_major))
        if found is None:
            inner = self._in_cta(bits, extent, mn_major, warp, site)
            if inner is None:
                return None
            granules = access.shared_granules(w, inner.reshape(-1), 16).reshape(-1)
            found = self._known[bits, extent, mn_major] = inner, granules
        start = int(w.cta_of[warp]) * w.shared.pitch
        return found[0] + start, found[1] + start // w.kernel.shared_granule

    def _in_cta(self, bits: int, extent: int, mn_major: bool, warp: int, site: int) -> Array | None:
        w = self._w
        try:
            address = arith.pieces(bits, extent, mn_major)
        except ValueError as error:
            w.launch.fault(w, FaultKind.DESCRIPTOR, site, str(error), warp=warp)
            return None
        inner = address - w.shared.base
        if inner.min() < 0 or inner.max() + 16 > w.shared.size:
            bad = inner[(inner < 0) | (inner + 16 > w.shared.size)]
            w.launch.fault(
                w, FaultKind.OUT_OF_BOUNDS, site,
                f"its matrix of {extent} {'columns' if mn_major else 'rows'} reaches {int(bad[0])} bytes"
                f" into the"
                f" {w.shared.size} bytes of shared memory", warp=warp,
            )  # fmt: skip
            return None
        return inner


__all__ = ["Form", "OperandPlaces", "Places"]
