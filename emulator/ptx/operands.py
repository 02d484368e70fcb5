"""What are the operands of an instruction?

Names that mean neither a register nor a variable yet (labels, functions) come out as `Pending` and are
settled when the function has been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from emulator.errors import PtxError
from emulator.ptx.constants import constant, integer, number
from emulator.ptx.nodes import (
    Address,
    Arguments,
    Imm,
    Negated,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)
from emulator.ptx.scopes import Names, Scope
from emulator.ptx.tokens import Cursor
from emulator.ptx.words import is_special

__all__ = ["Operands", "Pending", "Raw"]

_MAX_OFFSET = 1 << 63
_MAX_VECTOR = 512  # wgmma m64n256k8 has 128 registers of result, tcgen05.ld x128 has 128
_SINK = Sink()


@dataclass(frozen=True, slots=True)
class Pending:
    """A name not known yet, seen in `scope`."""

    name: str
    scope: Scope
    line: int


Raw: TypeAlias = Operand | Pending


class Operands:
    """Reads operands at a cursor with the names of one function and the variables of its module."""

    def __init__(self, cursor: Cursor, names: Names, symbols: set[str]) -> None:
        self.cursor = cursor
        self.names = names
        self.symbols = symbols
        self._constants: dict[str, Imm] = {}
        self._specials: dict[str, Special] = {}

    def operand(self) -> Raw:
        """The operand at the cursor, which then stands behind it."""
        cursor = self.cursor
        word = cursor.words[cursor.position]
        first = word[:1]
        if first == "%" or first == "_" or first == "$" or first.isalpha():
            return self._named(word)
        if first == "[":
            return self._address()
        if first == "{":
            return self._vector()
        if first == "!" and not cursor.words[cursor.position + 1][:1].isdigit():
            cursor.position += 1
            return Negated(self.register())
        return self._constant(word)

    def register(self) -> Reg:
        """A register at the cursor."""
        found = self._operand_of_name()
        if not isinstance(found, Reg):
            self.cursor.position -= 1
            self.cursor.fail(f"expected a register, found {self.cursor.shown()}")
        return found

    def arguments(self) -> Arguments:
        """`(a, b)` of a call, maybe empty."""
        cursor = self.cursor
        cursor.expect("(")
        items: list[Operand] = []
        while not cursor.accept(")"):
            if items:
                cursor.expect(",")
            items.append(self._known(self.operand()))
        return Arguments(tuple(items))

    def _known(self, raw: Raw) -> Operand:
        if isinstance(raw, Pending):
            raise PtxError(f"'{raw.name}' is not declared", raw.line)
        return raw

    def _constant(self, word: str) -> Imm:
        cursor = self.cursor
        follows = cursor.words[cursor.position + 1]
        if follows in (",", ";", "}", "]"):
            imm = self._constants.get(word)
            if imm is None:
                imm, _ = number(word, cursor.line)
                self._constants[word] = imm
            cursor.position += 1
            return imm
        return constant(cursor)

    def _operand_of_name(self) -> Raw:
        cursor = self.cursor
        position = cursor.position
        name = cursor.take()
        line = cursor.lines[position]
        found = self.names.find(name, line)
        if found is not None:
            return found
        special = self._specials.get(name)
        if special is not None:
            return special
        if is_special(name):
            self._specials[name] = Special(name)
            return self._specials[name]
        if "." in name:
            base, _, component = name.rpartition(".")
            vector = self.names.find(base, line)
            at = "xyzw".find({"r": "x", "g": "y", "b": "z", "a": "w"}.get(component, component))
            if isinstance(vector, Vector) and len(component) == 1 and 0 <= at < len(vector.items):
                return vector.items[at]
            raise PtxError(f"unknown operand '{name[:60]}'", line)
        if name in self.symbols:
            return Symbol(name)
        if name[0] == "%":
            raise PtxError(f"the register '{name[:60]}' is not declared", line)
        return Pending(name, self.names.scope, line)

    def _named(self, word: str) -> Raw:
        cursor = self.cursor
        if word == "WARP_SZ":
            return constant(cursor)
        first: Raw
        if word == "_":
            cursor.position += 1
            first = _SINK
        else:
            first = self._operand_of_name()
        follows = cursor.words[cursor.position]
        if follows == "|":
            cursor.position += 1
            second: Raw = _SINK if cursor.accept("_") else self.register()
            if not isinstance(first, Reg | Sink) or not isinstance(second, Reg | Sink):
                cursor.fail("'|' stands between registers")
            return Pair(first, second)
        if follows in ("+", "-") and isinstance(first, Symbol):
            return Symbol(first.name, self._offset())
        return first

    def _offset(self) -> int:
        cursor = self.cursor
        total = 0
        while cursor.words[cursor.position] in ("+", "-"):
            sign = -1 if cursor.take() == "-" else 1
            total += sign * integer(cursor, "an offset", -_MAX_OFFSET, _MAX_OFFSET)
        return total

    def _address(self) -> Address:
        cursor = self.cursor
        cursor.expect("[")
        word = cursor.word
        base: Reg | Symbol | int
        offset = 0
        if word[:1].isalpha() or word[:1] in ("_", "$", "%"):
            line = cursor.line
            found = self._operand_of_name()
            if isinstance(found, Pending):
                raise PtxError(f"'{found.name[:60]}' is not declared", line)
            if not isinstance(found, Reg | Symbol):
                raise PtxError(f"'{word[:60]}' is no address", line)
            base = found
            offset = self._offset()
        else:
            base = integer(cursor, "an address", -_MAX_OFFSET, 2 * _MAX_OFFSET - 1)
        coords: Vector | None = None
        if cursor.accept(","):
            coords = self._vector() if cursor.word == "{" else Vector((self._known(self._simple()),))
        cursor.expect("]")
        return Address(base, offset, coords)

    def _simple(self) -> Raw:
        word = self.cursor.word
        if word == "_":
            self.cursor.position += 1
            return _SINK
        if word[:1].isalpha() or word[:1] in ("_", "$", "%"):
            return self._operand_of_name() if word != "WARP_SZ" else constant(self.cursor)
        return self._constant(word)

    def _vector(self) -> Vector:
        cursor = self.cursor
        cursor.expect("{")
        items: list[Operand] = []
        while True:
            items.append(self._known(self._simple()))
            if isinstance(items[-1], Vector):
                cursor.fail("a vector inside a vector")
            if cursor.accept("}"):
                return Vector(tuple(items))
            cursor.expect(",")
            if len(items) >= _MAX_VECTOR:
                cursor.fail(f"a vector of more than {_MAX_VECTOR} operands")
