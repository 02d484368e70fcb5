"""What is a PTX program after parsing?

Plain frozen values; names are resolved: registers, labels and variables of inner scopes (`{ ... }` of inline
assembly) carry names that are unique in their function. Types, spaces and modifiers are words without their
leading dot ("u32", "shared", "L2::128B"). Sizes and offsets are bytes. `line` counts lines of the PTX text
from 1 and is no part of equality, so that a printed and parsed module equals the first.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = [
    "Address",
    "Arguments",
    "Function",
    "Imm",
    "Instruction",
    "Label",
    "Module",
    "Negated",
    "Operand",
    "Pair",
    "Param",
    "Place",
    "Prototype",
    "Reg",
    "Relocation",
    "Sink",
    "Special",
    "Symbol",
    "Variable",
    "Vector",
]


@dataclass(frozen=True, slots=True)
class Reg:
    """A register. `name` is unique in its function, `index` is its place in `Function.registers`."""

    name: str
    type: str
    index: int


@dataclass(frozen=True, slots=True)
class Imm:
    """A constant. kind "int": `value` as written, -2^63 … 2^64-1; "f32", "f64": `value` holds the raw bits.

    Decimal floats are f64 (PTX ISA 4.5.2); an instruction of type f32 rounds them (`as_float`).
    """

    value: int
    kind: Literal["int", "f32", "f64"] = "int"

    def as_float(self) -> float:
        """The number as a Python float, also that of an integer."""
        if self.kind == "f32":
            return float(struct.unpack("<f", self.value.to_bytes(4, "little"))[0])
        if self.kind == "f64":
            return float(struct.unpack("<d", self.value.to_bytes(8, "little"))[0])
        return float(self.value)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable or function, plus `offset` bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target: a key of `Function.labels`, or of `Function.branch_targets` for brx.idx."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, as written: "%tid.x", "%laneid", "%clock64"."""

    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """The `_` operand: the result is not wanted."""


@dataclass(frozen=True, slots=True)
class Negated:
    """A negated predicate operand: `!p`."""

    reg: Reg


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two destinations (`setp p|q`, `shfl.sync d|p`, `elect.sync _|p`)."""

    first: Reg | Sink
    second: Reg | Sink


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`; an int base is an absolute address. `coords`: of tensor copies, `[map, {x, y}]`."""

    base: Reg | Symbol | int
    offset: int = 0
    coords: Vector | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parenthesised list of a call: `(param0, param1)`."""

    items: tuple[Operand, ...]


Operand: TypeAlias = (
    Reg | Imm | Symbol | Label | Special | Sink | Negated | Vector | Pair | Address | Arguments
)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the source. `inlined_at` is the line of the call that was inlined, and so on outwards."""

    file: str
    line: int
    column: int = 0
    inlined_at: Place | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `mad.lo.s32` has the opcode "mad" and the modifiers ("lo", "s32").

    `call` has the operands (Arguments of results, target, Arguments of parameters[, Symbol of prototype or
    targets]); both Arguments are always there, maybe empty.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Reg | None = None
    negated: bool = False
    place: Place | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Relocation:
    """An address inside the initialiser of a variable, shifted right by `shift` bits and cut to `size` bytes.

    `generic`: written as generic(symbol).
    """

    offset: int
    size: int
    symbol: Symbol
    generic: bool = False
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of space global, const, shared, local or param (scratch of a call).

    `shape` counts elements of `type` (() for a scalar; the first is 0 for an extern array `x[]`). `data` is
    the initialiser, maybe shorter than `size` (the rest is zero), None without one.
    """

    name: str
    space: str
    type: str
    align: int
    shape: tuple[int, ...]
    size: int
    data: bytes | None = None
    relocations: tuple[Relocation, ...] = ()
    extern: bool = False
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter; `offset` in the parameter buffer: natural alignment. `pointer`: the space of `.ptr`."""

    name: str
    type: str
    align: int
    size: int
    offset: int
    shape: tuple[int, ...] = ()
    pointer: str | None = None
    pointer_align: int = 0


@dataclass(frozen=True, slots=True)
class Prototype:
    """Of an indirect call (`.callprototype`)."""

    results: tuple[Param, ...]
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """An `.entry` or a `.func`. Without a body (a declaration) `defined` is False.

    `labels` maps a unique label to the index in `body` of the instruction it precedes (len(body) at the end);
    `registers` are those used; `variables` those declared inside, of every scope. `directives`:
    "maxntid": (128, 1, 1), "pragma": ("nounroll",), ...
    """

    name: str
    is_entry: bool
    results: tuple[Param, ...]
    params: tuple[Param, ...]
    directives: Mapping[str, tuple[int | str, ...]]
    registers: tuple[Reg, ...]
    variables: tuple[Variable, ...]
    body: tuple[Instruction, ...]
    labels: Mapping[str, int]
    branch_targets: Mapping[str, tuple[str, ...]]
    call_targets: Mapping[str, tuple[str, ...]]
    prototypes: Mapping[str, Prototype]
    defined: bool = True
    linkage: str = ""
    line: int = field(default=0, compare=False)

    @property
    def param_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX text. `target`: ("sm_80", ...); `files` maps numbers to names; `aliases` names to functions."""

    version: tuple[int, int]
    target: tuple[str, ...]
    address_size: int
    files: Mapping[int, str]
    variables: tuple[Variable, ...]
    functions: tuple[Function, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def function(self, name: str) -> Function:
        """The function of that name, a definition before a declaration. KeyError where there is none."""
        found = [f for f in self.functions if f.name == name]
        for f in found:
            if f.defined:
                return f
        if found:
            return found[0]
        raise KeyError(name)
