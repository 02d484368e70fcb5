"""What number does a constant or a constant expression of PTX stand for?

PTX ISA 4.5: integers are 64 bits wide and signed where they fit, else (or with the suffix U) unsigned;
expressions follow C. Floats are decimal (f64) or exact bits, 0f3F800000 (f32) and 0d3FF0000000000000 (f64).
"""

from __future__ import annotations

import math
import re
import struct

from emulator.errors import PtxError
from emulator.ptx.nodes import Imm
from emulator.ptx.tokens import Cursor

__all__ = ["constant", "count", "integer", "number"]

_INTEGER = re.compile(r"(?:(0[xX][0-9a-fA-F]+)|(0[bB][01]+)|(0[0-7]*)|([1-9][0-9]*))(U?)", re.ASCII)
_FLOAT = re.compile(r"\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+", re.ASCII)
_MASK = (1 << 64) - 1
_MAX_DIGITS = 80
_MAX_DEPTH = 32

_BINARY = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip


def number(word: str, line: int) -> tuple[Imm, bool]:
    """The constant that one word is, and whether it is an unsigned integer. PtxError if it is none."""
    if word == "WARP_SZ":
        return Imm(32), False
    if len(word) <= _MAX_DIGITS:
        match = _INTEGER.fullmatch(word)
        if match:
            hexadecimal, binary, octal, _, suffix = match.groups()
            digits = word[: len(word) - len(suffix)]
            value = int(digits, 16 if hexadecimal else 2 if binary else 8 if octal else 10)
            if value > _MASK:
                raise PtxError(f"the integer {word} does not fit in 64 bits", line)
            return Imm(value), bool(suffix) or value > _MASK >> 1
        if word[:2] in ("0f", "0F") and len(word) == 10:
            return Imm(int(word[2:], 16), "f32"), False
        if word[:2] in ("0d", "0D") and len(word) == 18:
            return Imm(int(word[2:], 16), "f64"), False
        if _FLOAT.fullmatch(word):
            value_f = float(word)
            if not math.isfinite(value_f):
                raise PtxError(f"the float {word} does not fit in f64", line)
            return Imm(int.from_bytes(struct.pack("<d", value_f), "little"), "f64"), False
    raise PtxError(f"'{word[:60]}' is no constant", line)


def constant(cursor: Cursor) -> Imm:
    """The constant expression at the cursor, which then stands behind it."""
    imm, unsigned = _binary(cursor, 0, 0)
    if imm.kind == "int":
        return Imm(_wrap(imm.value, unsigned))
    return imm


def integer(cursor: Cursor, what: str, low: int = 0, high: int = _MASK) -> int:
    """A constant integer expression in [low, high]; PtxError names `what` otherwise."""
    line = cursor.line
    imm = constant(cursor)
    if imm.kind != "int" or not low <= imm.value <= high:
        raise PtxError(f"{what} must be an integer from {low} to {high}, found {imm.value}", line)
    return imm.value


def count(cursor: Cursor, what: str, low: int, high: int) -> int:
    """One word that is an integer in [low, high], as in `%r<100>`; PtxError names `what` otherwise."""
    line = cursor.line
    imm, _ = number(cursor.take(), line)
    if imm.kind != "int" or not low <= imm.value <= high:
        raise PtxError(f"{what} must be an integer from {low} to {high}, found {imm.value}", line)
    return imm.value


def _wrap(value: int, unsigned: bool) -> int:
    value &= _MASK
    return value if unsigned or value <= _MASK >> 1 else value - (1 << 64)


def _unary(cursor: Cursor, depth: int) -> tuple[Imm, bool]:
    if depth > _MAX_DEPTH:
        cursor.fail("the constant expression is nested too deeply")
    line = cursor.line
    word = cursor.take()
    if word in ("-", "+", "~", "!"):
        imm, unsigned = _unary(cursor, depth + 1)
        if imm.kind != "int":
            if word == "+":
                return imm, False
            if word != "-":
                raise PtxError(f"'{word}' before a float", line)
            return Imm(imm.value ^ (1 << (31 if imm.kind == "f32" else 63)), imm.kind), False
        if word == "!":
            return Imm(int(imm.value == 0)), False
        value = -imm.value if word == "-" else ~imm.value if word == "~" else imm.value
        return Imm(_wrap(value, unsigned)), unsigned
    if word == "(":
        if cursor.word in (".s64", ".u64"):
            unsigned = cursor.take() == ".u64"
            cursor.expect(")")
            imm, _ = _unary(cursor, depth + 1)
            if imm.kind != "int":
                raise PtxError("a cast of a float", line)
            return Imm(_wrap(imm.value, unsigned)), unsigned
        inner = _binary(cursor, 0, depth + 1)
        cursor.expect(")")
        return inner
    return number(word, line)


def _binary(cursor: Cursor, least: int, depth: int) -> tuple[Imm, bool]:
    left, unsigned = _unary(cursor, depth)
    while True:
        sign = cursor.word
        level = _BINARY.get(sign, 0)
        if not level or level <= least:
            return left, unsigned
        line = cursor.line
        cursor.take()
        right, right_unsigned = _binary(cursor, level, depth + 1)
        if left.kind != "int" or right.kind != "int":
            raise PtxError(f"'{sign}' between floats", line)
        both = unsigned or right_unsigned
        if sign in ("<<", ">>"):
            both = unsigned
        value = _apply(sign, _wrap(left.value, both), _wrap(right.value, both), line)
        if level in (1, 2, 6, 7):
            both = False
        left, unsigned = Imm(_wrap(value, both)), both


def _apply(sign: str, a: int, b: int, line: int) -> int:
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/" | "%":
            if b == 0:
                raise PtxError("a division by zero in a constant expression", line)
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if sign == "/" else a - quotient * b
        case "<<" | ">>":
            if not 0 <= b < 64:
                raise PtxError(f"a shift by {b} in a constant expression", line)
            return a << b if sign == "<<" else a >> b
        case "&":
            return a & b
        case "|":
            return a | b
        case "^":
            return a ^ b
        case "&&":
            return int(bool(a) and bool(b))
        case "||":
            return int(bool(a) or bool(b))
        case "==":
            return int(a == b)
        case "!=":
            return int(a != b)
        case "<":
            return int(a < b)
        case "<=":
            return int(a <= b)
        case ">":
            return int(a > b)
        case _:
            return int(a >= b)
