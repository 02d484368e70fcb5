"""How does an instruction read its operands and write its results?

A reader gives raw bits: an unsigned array of the group's (rows, 32), or (1, 1) for what is the same
everywhere; a predicate is bool. A writer takes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from emulator.errors import PtxError
from emulator.kernel import BITS, Kernel
from emulator.machine.wave import WARP, Array, Step, Wave
from emulator.ptx.nodes import (
    Address,
    Imm,
    Instruction,
    Negated,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)
from emulator.ptx.printer import print_operand
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import Index

Reader: TypeAlias = Callable[[Wave], Array]
Writer: TypeAlias = Callable[[Wave, Array], None]

UNSIGNED = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "tf32", "f32", "f64")


class Context:
    """One instruction while it is decoded. `site` is its index in the kernel's body."""

    def __init__(self, kernel: Kernel, instruction: Instruction, site: int) -> None:
        self.kernel = kernel
        self.i = instruction
        self.site = site

    def error(self, message: str) -> PtxError:
        """What is unknown about this instruction, with its line."""
        return PtxError(f"{self.text}: {message}", self.i.line)

    @property
    def text(self) -> str:
        """Opcode and modifiers as written."""
        return ".".join((self.i.opcode, *self.i.modifiers))

    def has(self, *names: str) -> bool:
        """Whether any of the modifiers is there."""
        return any(n in self.i.modifiers for n in names)

    def allow(self, *known: str) -> None:
        """Any other modifier is an error: nothing is skipped in silence."""
        for m in self.i.modifiers:
            if m not in known:
                raise self.error(f"modifier .{m} is not known here")

    def one_of(self, *names: str) -> str:
        """The modifier that must be one of these."""
        found = next((m for m in self.i.modifiers if m in names), None)
        if found is None:
            raise self.error(f"none of {', '.join('.' + n for n in names)}")
        return found

    def operands(self, *counts: int) -> tuple[Operand, ...]:
        """The operands, of which there must be so many."""
        if len(self.i.operands) not in counts:
            raise self.error(f"{len(self.i.operands)} operands, not {' or '.join(map(str, counts))}")
        return self.i.operands

    @staticmethod
    def two(target: Operand) -> tuple[Operand, Operand]:
        """The operands of `d|p`; where there is but one, the second is not wanted."""
        return (target.first, target.second) if isinstance(target, Pair) else (target, Sink())

    # -- reading ----------------------------------------------------------------------------------------

    def value(self, op: Operand, bits: int, kind: str = "", wider: bool = False) -> Reader:
        """Raw bits of an operand; `kind` is the instruction's type, for constants. `wider`: of a wider
        register the low bits are taken (ld, st and cvt only: PTX ISA 9.4.1)."""
        if isinstance(op, Reg):
            return self._register(op, bits, wider)
        if isinstance(op, Imm):
            constant: Array = np.array([[self._constant(op, bits, kind)]], UNSIGNED[bits])
            return lambda w: constant
        if isinstance(op, Special):
            return self._special(op.name, bits)
        if isinstance(op, Symbol):
            return self._symbol(op, bits)
        if isinstance(op, Negated):
            return self.predicate(op)
        if isinstance(op, Vector):
            return self._packed(op, bits)
        raise self.error(f"operand {print_operand(op)} is not a value")

    def _register(self, op: Reg, bits: int, wider: bool) -> Reader:
        index, width = op.index, BITS[op.type]
        if width == bits:
            return lambda w: w.get(index)
        self._check_width(op, width, bits, wider)
        kind = UNSIGNED[bits]
        return lambda w: w.get(index).astype(kind)

    def _check_width(self, op: Reg, width: int, bits: int, wider: bool) -> None:
        if width == 1:
            raise self.error(f"{op.name} is a predicate")
        if bits == 1:
            raise self.error(f"{op.name} is no predicate")
        if width < bits or not wider:
            raise self.error(f"{op.name} has {width} bits, not {bits}")

    def _constant(self, op: Imm, bits: int, kind: str) -> int:
        if op.kind == "int":
            if kind in ("f32", "f64") and op.value not in (0,):
                raise self.error(f"the constant {op.value} is no .{kind}")
            return op.value & ((1 << bits) - 1)
        if op.kind == "f32":
            if bits == 64:
                return int(np.float64(op.as_float()).view(np.uint64))
            return op.value & ((1 << bits) - 1)
        if bits == 64:
            return op.value
        with np.errstate(over="ignore"):
            return int(np.float32(op.as_float()).view(np.uint32))

    def _packed(self, op: Vector, bits: int) -> Reader:
        """mov.b32 d, {a, b}: the first element is the lowest."""
        each = bits // len(op.items)
        parts = [self.value(item, each) for item in op.items]
        kind = UNSIGNED[bits]

        def read(w: Wave) -> Array:
            total: Array = parts[0](w).astype(kind)
            for n, part in enumerate(parts[1:], 1):
                total = total | (part(w).astype(kind) << kind(n * each))
            return total

        return read

    def _special(self, name: str, bits: int) -> Reader:
        kind = UNSIGNED[bits]
        if name == "%is_explicit_cluster":
            if bits != 1:
                raise self.error("%is_explicit_cluster is a predicate")
            return lambda w: np.array([[w.launch.explicit_cluster]])
        fixed = self.kernel_constant(name)
        if fixed is not None:
            return lambda w: np.array([[fixed(w) & ((1 << bits) - 1)]], kind)
        if name in _PER_LANE:
            return lambda w: w.special_value(name).astype(kind)
        raise self.error(f"special register {name} is not known")

    @staticmethod
    def kernel_constant(name: str) -> Callable[[Wave], int] | None:
        """A special register that is the same for all threads, as a function of the wave."""
        if name in _CONSTANT:
            return _CONSTANT[name]
        return None

    def _symbol(self, op: Symbol, bits: int) -> Reader:
        kind = UNSIGNED[bits]
        address = self.symbol_address(op.name)
        offset = op.offset
        shared = self._is_shared(op.name)

        def read(w: Wave) -> Array:
            if shared and w.rank_base is not None:
                return (address(w) + offset + w.rank_base[w.warps, None]).astype(kind)
            return np.array([[(address(w) + offset) & ((1 << bits) - 1)]], kind)

        return read

    def _is_shared(self, name: str) -> bool:
        at = self.kernel.variables.get(name)
        return at is not None and at.space == "shared"

    def symbol_address(self, name: str) -> Callable[[Wave], int]:
        """The address of a variable in its own space."""
        at = self.kernel.variables.get(name)
        if at is not None:
            base = self.kernel.shared_base if at.space == "shared" else 0
            total = base + at.offset
            return lambda w: total
        if any(v.name == name for v in self.kernel.module_data):
            return lambda w: w.launch.symbols[name]
        raise self.error(f"no variable {name}")

    def predicate(self, op: Operand) -> Reader:
        """A predicate, maybe negated, or a constant."""
        if isinstance(op, Negated):
            index = op.reg.index
            return lambda w: ~w.get(index)
        if isinstance(op, Reg) and op.type == "pred":
            index = op.index
            return lambda w: w.get(index)
        if isinstance(op, Special):
            return self._special(op.name, 1)
        if isinstance(op, Imm) and op.kind == "int":
            constant = np.array([[op.value != 0]])
            return lambda w: constant
        raise self.error(f"operand {print_operand(op)} is not a predicate")

    def address(self, op: Operand) -> Reader:
        """An address operand as (rows, 32) or (1, 1) int64."""
        if not isinstance(op, Address) or op.coords is not None:
            raise self.error(f"operand {print_operand(op)} is not an address")
        base, offset = op.base, op.offset
        if isinstance(base, int):
            constant = np.array([[base + offset]], np.int64)
            return lambda w: constant
        if isinstance(base, Symbol):
            where, offset = self.symbol_address(base.name), offset + base.offset
            if self._is_shared(base.name):
                return lambda w: (
                    np.array([[where(w) + offset]], np.int64)
                    if w.rank_base is None
                    else where(w) + offset + w.rank_base[w.warps, None]
                )
            return lambda w: np.array([[where(w) + offset]], np.int64)
        index = base.index
        if offset == 0:
            return lambda w: w.get(index).astype(np.int64)
        return lambda w: w.get(index).astype(np.int64) + offset

    def integer(self, op: Operand) -> int:
        """A constant whole number."""
        if isinstance(op, Imm) and op.kind == "int":
            return op.value
        raise self.error(f"operand {print_operand(op)} must be a whole constant")

    # -- writing ----------------------------------------------------------------------------------------

    def dest(self, op: Operand, bits: int, signed: bool = False, wider: bool = False) -> Writer:
        """Write raw bits of a width. `wider` (ld and cvt only: PTX ISA 9.4.1): a wider register gets them
        extended by zeros, or by sign if `signed`."""
        if isinstance(op, Sink):
            return lambda w, v: None
        if isinstance(op, Vector):
            return self._unpack(op, bits)
        if not isinstance(op, Reg):
            raise self.error(f"operand {print_operand(op)} cannot be written")
        index, width = op.index, BITS[op.type]
        if width == bits:
            return lambda w, v: w.put(index, v)
        self._check_width(op, width, bits, wider)
        to = UNSIGNED[width]
        if signed and width > bits:
            middle, wide = SIGNED[bits], SIGNED[width]
            return lambda w, v: w.put(index, v.view(middle).astype(wide).view(to))
        return lambda w, v: w.put(index, v.astype(to))

    def _unpack(self, op: Vector, bits: int) -> Writer:
        each = bits // len(op.items)
        parts = [self.dest(item, each) for item in op.items]
        kind, whole = UNSIGNED[each], UNSIGNED[bits]

        def write(w: Wave, v: Array) -> None:
            for n, part in enumerate(parts):
                part(w, (v >> whole(n * each)).astype(kind))

        return write

    # -- whole warps ------------------------------------------------------------------------------------

    def members(self, op: Operand) -> Callable[[Wave], Array]:
        """The membermask operand of a `.sync` instruction as (rows, 32) bool: the lanes it names. All of them
        that have not ended must be here, and each lane that is here must be named."""
        read = self.value(op, 32)
        site = self.site

        def members(w: Wave) -> Array:
            masks = w.whole(read(w))
            lane = np.arange(WARP, dtype=np.uint32)
            here = w.mask_full()
            alone = here & (masks >> lane & 1 == 0)
            if alone.any():
                row, first = (int(x[0]) for x in np.nonzero(alone))
                text = f"its membermask {int(masks[row, first]):#x} does not name the lane itself"
                w.launch.fault(w, FaultKind.DIVERGENCE, site, text, row=row, lane=first)
            named = np.bitwise_or.reduce(np.where(here, masks, 0), axis=1)
            wanted: Array = (named[:, None] >> lane & 1).astype(np.bool_)
            # Lanes that have ended are waited for by nobody.
            w.need(site, wanted & w.present())
            return wanted

        return members


def active_only(w: Wave) -> tuple[Index, Index]:
    """(row, lane) of active lanes."""
    return w.active()


_CONSTANT: dict[str, Callable[[Wave], int]] = {
    **{f"%ntid.{a}": (lambda w, n=n: w.launch.block[n]) for n, a in enumerate("xyz")},  # type: ignore[misc]
    **{f"%nctaid.{a}": (lambda w, n=n: w.launch.grid[n]) for n, a in enumerate("xyz")},  # type: ignore[misc]
    "%nwarpid": lambda w: w.per_cta,
    "%nsmid": lambda w: w.launch.sm_count,
    "%gridid": lambda w: 0,
    "%clock": lambda w: w.cycle,
    "%clock_hi": lambda w: w.cycle >> 32,
    "%clock64": lambda w: w.cycle,
    "%globaltimer": lambda w: w.cycle,
    "%globaltimer_lo": lambda w: w.cycle,
    "%dynamic_smem_size": lambda w: w.launch.dynamic_bytes,
    "%total_smem_size": lambda w: w.launch.shared_bytes,
    "%aggr_smem_size": lambda w: w.launch.shared_bytes,
}  # fmt: skip
_PER_LANE = frozenset(
    ("%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%laneid", "%warpid", "%smid",
     "%cluster_ctarank", "%cluster_nctarank",
     *(f"%{n}.{a}" for n in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid") for a in "xyz"),
     "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_ge", "%lanemask_gt")
)  # fmt: skip

__all__ = ["FLOATS", "SIGNED", "UNSIGNED", "Context", "Reader", "Step", "Writer", "active_only"]
