"""How are variables, parameters and their initialisers read?

PTX ISA 5.4: `.align 16 .b8 name[4][8] = {...}` after the state space. Natural alignment: that of the
element type, of a vector its whole size; a parameter buffer lays its parameters out one after another at
their alignment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias

from emulator.errors import PtxError
from emulator.ptx.constants import constant, count, integer
from emulator.ptx.nodes import Imm, Param, Relocation, Symbol, Variable
from emulator.ptx.tokens import Cursor
from emulator.ptx.words import TYPE_BYTES

__all__ = ["Declared", "declaration", "param_list", "variables"]

_MAX_BYTES = 1 << 40
_MAX_INITIALISED = 16 << 20
_MAX_NESTING = 8
Resolve: TypeAlias = Callable[[str, int], Symbol]

_SPACES = (".const", ".global", ".local", ".shared")


class Declared:
    """The type, alignment and vector length that a declaration starts with."""

    __slots__ = ("align", "pointer", "pointer_align", "type", "vector")

    def __init__(self) -> None:
        self.align = 0
        self.type = ""
        self.vector = 1
        self.pointer: str | None = None
        self.pointer_align = 0

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return TYPE_BYTES[self.type] * self.vector


def declaration(cursor: Cursor, *, param: bool = False) -> Declared:
    """`.align N .v4 .type`, in any order before the type; for a parameter `.ptr .space .align N` after it."""
    found = Declared()
    while True:
        word = cursor.word
        if word == ".align":
            cursor.take()
            found.align = _alignment(cursor)
        elif word in (".v2", ".v4", ".v8"):
            cursor.take()
            found.vector = int(word[2:])
        elif word == ".attribute":
            cursor.take()
            _attribute(cursor)
        elif word[:1] == "." and word[1:] in TYPE_BYTES:
            cursor.take()
            found.type = word[1:]
            break
        else:
            cursor.fail(f"expected a type, found {cursor.shown()}")
    if cursor.word == ".align" and not found.align:
        cursor.take()
        found.align = _alignment(cursor)
    if param and cursor.accept(".ptr"):
        found.pointer = "generic"
        if cursor.word in _SPACES:
            found.pointer = cursor.take()[1:]
        if cursor.accept(".align"):
            found.pointer_align = _alignment(cursor)
    found.align = found.align or found.element
    return found


def _alignment(cursor: Cursor) -> int:
    line = cursor.line
    value = integer(cursor, ".align", 1, 1 << 20)
    if value & (value - 1):
        raise PtxError(f".align must be a power of two, found {value}", line)
    return value


def _attribute(cursor: Cursor) -> None:
    cursor.expect("(")
    if cursor.accept(".unified"):
        cursor.expect("(")
        integer(cursor, "a part of the unique id")
        cursor.expect(",")
        integer(cursor, "a part of the unique id")
        cursor.expect(")")
    else:
        cursor.expect(".managed")
    cursor.expect(")")


def _shape(cursor: Cursor) -> tuple[int, ...]:
    shape: list[int] = []
    while cursor.accept("["):
        if cursor.word == "]" and not shape:
            shape.append(0)
        else:
            shape.append(integer(cursor, "an array dimension", 0, _MAX_BYTES))
        cursor.expect("]")
        if len(shape) > _MAX_NESTING:
            cursor.fail(f"an array of more than {_MAX_NESTING} dimensions")
    return tuple(shape)


def _size(shape: tuple[int, ...], element: int, line: int) -> int:
    size = element
    for extent in shape:
        size *= extent
    if size > _MAX_BYTES:
        raise PtxError(f"a variable of {size} bytes, at most {_MAX_BYTES} are taken", line)
    return size


def param_list(cursor: Cursor) -> tuple[Param, ...]:
    """`(.param .u64 a, .param .align 8 .b8 b[16])`; the name may be missing or `_`, then it is ""."""
    cursor.expect("(")
    params: list[Param] = []
    offset = 0
    names: set[str] = set()
    while not cursor.accept(")"):
        if params:
            cursor.expect(",")
        line = cursor.line
        if cursor.word == ".reg":
            cursor.fail("a parameter in a register (.reg) is not supported, .param is")
        cursor.expect(".param")
        found = declaration(cursor, param=True)
        name = ""
        if not cursor.accept("_") and cursor.word not in (",", ")", "["):
            name = cursor.identifier("the name of a parameter")
        if name in names:
            raise PtxError(f"two parameters are called '{name}'", line)
        names |= {name} if name else set()
        shape = _shape(cursor)
        size = _size(shape, found.element, line)
        offset = -(-offset // found.align) * found.align
        params.append(
            Param(name, found.type, found.align, size, offset, shape, found.pointer, found.pointer_align)
        )
        offset += size
    return tuple(params)


def variables(cursor: Cursor, space: str, resolve: Resolve, *, extern: bool = False) -> list[Variable]:
    """The declaration after its space, up to and with its `;`. `resolve` gives the symbol of a name."""
    found = declaration(cursor)
    result: list[Variable] = []
    while True:
        line = cursor.line
        name = cursor.identifier("the name of a variable")
        if cursor.word == "<":
            cursor.take()
            number = count(cursor, "the number of variables", 1, 65536)
            cursor.expect(">")
            size, shape = found.element, _with_vector((), found)
            result += [
                Variable(f"{name}{i}", space, found.type, found.align, shape, size, line=line)
                for i in range(number)
            ]
        else:
            result.append(_variable(cursor, name, space, found, resolve, extern, line))
        if cursor.accept(";"):
            return result
        cursor.expect(",")


def _with_vector(shape: tuple[int, ...], found: Declared) -> tuple[int, ...]:
    return (*shape, found.vector) if found.vector > 1 else shape


def _variable(
    cursor: Cursor,
    name: str,
    space: str,
    found: Declared,
    resolve: Resolve,
    extern: bool,
    line: int,
) -> Variable:
    shape = _with_vector(_shape(cursor), found)
    scalar = TYPE_BYTES[found.type]
    data: bytes | None = None
    relocations: tuple[Relocation, ...] = ()
    if cursor.accept("="):
        if extern or space not in ("global", "const"):
            raise PtxError(f"the {'extern' if extern else space} variable '{name}' has an initialiser", line)
        values: list[tuple[int, Imm | Relocation]] = []
        if shape[:1] == (0,):
            rows = _initialiser(cursor, shape, scalar, 0, values, resolve, 0)
            shape = (rows, *shape[1:])
        else:
            _initialiser(cursor, shape, scalar, 0, values, resolve, 0)
        data, relocations = _bytes(values, found.type, line)
    size = _size(shape, scalar, line)
    if data is not None and size > _MAX_INITIALISED:
        raise PtxError(f"an initialised variable of {size} bytes, at most {_MAX_INITIALISED} are taken", line)
    return Variable(name, space, found.type, found.align, shape, size, data, relocations, extern, line)


def _initialiser(
    cursor: Cursor,
    shape: tuple[int, ...],
    scalar: int,
    offset: int,
    values: list[tuple[int, Imm | Relocation]],
    resolve: Resolve,
    depth: int,
) -> int:
    """Read what fills `shape` from byte `offset` on; the number of rows read. Depth is at most 9."""
    if not shape:
        values.append((offset, _element(cursor, offset, scalar, resolve)))
        return 1
    row = _size(shape[1:], scalar, cursor.line)
    cursor.expect("{")
    rows = 0
    while not cursor.accept("}"):
        if rows:
            cursor.expect(",")
            if cursor.accept("}"):
                break
        if rows >= shape[0] and not (depth == 0 and shape[0] == 0):
            cursor.fail(f"more than {shape[0]} initial values")
        if offset + rows * row > _MAX_INITIALISED:
            cursor.fail(f"an initialiser past {_MAX_INITIALISED} bytes")
        _initialiser(cursor, shape[1:], scalar, offset + rows * row, values, resolve, depth + 1)
        rows += 1
    return rows


def _element(cursor: Cursor, offset: int, size: int, resolve: Resolve) -> Imm | Relocation:
    word = cursor.word
    if word[:1].isdigit() and cursor.words[cursor.position + 1] == "(":
        mask = integer(cursor, "a mask")
        shift = next((s for s in range(0, 64, 8) if mask == 0xFF << s), None)
        if shift is None:
            cursor.fail(f"a mask must be one byte of a 64-bit word, found {mask:#x}")
        cursor.expect("(")
        inner: Imm | Relocation
        if _is_name(cursor.word):
            inner = _address(cursor, offset, 1, resolve, shift)
        else:
            value = constant(cursor)
            if value.kind != "int":
                cursor.fail("a mask of a float")
            inner = Imm(value.value >> shift & 0xFF)
        cursor.expect(")")
        return inner
    if _is_name(word):
        return _address(cursor, offset, size, resolve, 0)
    return constant(cursor)


def _is_name(word: str) -> bool:
    return (word[:1].isalpha() or word[:1] in ("_", "$", "%")) and word != "WARP_SZ"


def _address(cursor: Cursor, offset: int, size: int, resolve: Resolve, shift: int) -> Relocation:
    generic = False
    line = cursor.line
    name = cursor.identifier("the name of a variable")
    if name == "generic" and cursor.accept("("):
        generic = True
        name = cursor.identifier("the name of a variable")
        plus = _plus(cursor)
        cursor.expect(")")
    else:
        plus = _plus(cursor)
    if generic and not plus:
        plus = _plus(cursor)
    return Relocation(offset, size, Symbol(resolve(name, line).name, plus), generic, shift)


def _plus(cursor: Cursor) -> int:
    if cursor.word in ("+", "-"):
        sign = -1 if cursor.take() == "-" else 1
        return sign * integer(cursor, "an offset", -_MAX_BYTES, _MAX_BYTES)
    return 0


def _bytes(
    values: list[tuple[int, Imm | Relocation]], type_: str, line: int
) -> tuple[bytes, tuple[Relocation, ...]]:
    scalar = TYPE_BYTES[type_]
    relocations: list[Relocation] = []
    end = max((offset + scalar for offset, _ in values), default=0)
    data = bytearray(end)
    for offset, value in values:
        if isinstance(value, Relocation):
            if value.shift == 0 and value.size not in (1, 4, 8):
                raise PtxError(f"an address in a variable of type .{type_}", line)
            relocations.append(value)
        else:
            data[offset : offset + scalar] = _scalar(value, type_, line)
    return bytes(data), tuple(relocations)


def _scalar(value: Imm, type_: str, line: int) -> bytes:
    size = TYPE_BYTES[type_]
    if type_ in ("f32", "f64"):
        if value.kind == type_:
            return value.value.to_bytes(size, "little")
        try:
            return struct.pack("<f" if type_ == "f32" else "<d", value.as_float())
        except OverflowError:
            raise PtxError(f"the initial value {value.as_float()} does not fit in .{type_}", line) from None
    if value.kind != "int":
        raise PtxError(f"a float as initial value of type .{type_}", line)
    return (value.value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
