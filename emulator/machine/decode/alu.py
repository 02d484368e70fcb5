"""Arithmetic, logic, comparisons, moves, conversions: which function of emulator.arith, on which operands?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from emulator.arith import bits as logic
from emulator.arith import compare as comparing
from emulator.arith import floats, halves, integers
from emulator.kernel import BITS
from emulator.machine.decode.context import UNSIGNED, Context
from emulator.machine.decode.forms import COMPARED, FORMS, type_of
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Imm

Function: TypeAlias = Callable[..., Array]
Plan: TypeAlias = tuple[Function, Sequence[int], int]
"""The function on raw bits, the widths of its operands, the width of its result."""

ROUND = ("rn", "rz", "rm", "rp", "rna", "rs")
_FLOAT = ("f32", "f64", "f32x2")
_HALF = ("f16", "f16x2", "bf16", "bf16x2")
_LOGIC = {"and": logic.and_, "or": logic.or_, "xor": logic.xor}
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
            "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")  # fmt: skip

OPCODES = (
    "add", "sub", "mul", "mad", "fma", "mul24", "mad24", "sad", "div", "rem", "abs", "neg", "min", "max",
    "popc", "clz", "bfind", "fns", "brev", "bfe", "bfi", "bmsk", "szext", "dp4a", "dp2a",
    "and", "or", "xor", "not", "cnot", "lop3", "shl", "shr", "shf", "prmt",
    "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "copysign", "testp", "slct", "set",
)  # fmt: skip


def arithmetic(c: Context) -> Step:
    """Everything that maps registers to one register."""
    if c.has("cc"):
        return with_carry(c)
    kind, function, widths, result = _plan(c)
    ops = c.i.operands
    if len(ops) != len(widths) + 1:
        raise c.error(f"{len(ops)} operands, not {len(widths) + 1}")
    reads = [c.predicate(o) if n == 1 else c.value(o, n, kind) for o, n in zip(ops[1:], widths, strict=True)]
    write = c.dest(ops[0], result)
    if len(reads) == 1:
        (a,) = reads
        return lambda w: write(w, function(a(w)))
    if len(reads) == 2:
        a, b = reads
        return lambda w: write(w, function(a(w), b(w)))
    if len(reads) == 3:
        a, b, d = reads
        return lambda w: write(w, function(a(w), b(w), d(w)))
    return lambda w: write(w, function(*(r(w) for r in reads)))


def _rounding(c: Context, *more: str) -> str:
    return next((m for m in c.i.modifiers if m in ROUND or m in more), "rn")


def _plan(c: Context) -> tuple[str, Function, Sequence[int], int]:
    """The type for constants, and the plan."""
    op = c.i.opcode
    if op in _TYPED:
        kind = c.i.modifiers[-1] if c.i.modifiers else ""
        return kind, *_TYPED[op](c, kind)
    kind = type_of(c)
    if kind == "pred":
        if op == "not":
            return kind, partial(logic.not_, "pred"), (1,), 1
        return kind, partial(_LOGIC[op], "pred"), (1, 1), 1
    bits = BITS[kind]
    ftz, sat = c.has("ftz"), c.has("sat")
    if op in _FIXED:
        return kind, *_FIXED[op](c, kind, bits)
    if kind in _HALF:
        return kind, *_half(c, kind, bits)
    if kind in _FLOAT:
        return kind, *_float(c, kind, bits, ftz, sat)
    return kind, *_integer(c, kind, bits, sat)


# -- integers -------------------------------------------------------------------------------------------


def _integer(c: Context, kind: str, bits: int, sat: bool) -> Plan:
    op = c.i.opcode
    if op in ("add", "sub"):
        if sat or kind.endswith("x2"):
            return partial(getattr(integers, op), kind, sat=sat), (bits, bits), bits
        return (np.add if op == "add" else np.subtract), (bits, bits), bits
    if op in ("mul", "mad", "mul24", "mad24"):
        part = next((m for m in c.i.modifiers if m in ("lo", "hi", "wide")), None)
        if part is None:
            raise c.error("neither .lo, .hi nor .wide")
        if sat and part != "hi":
            raise c.error("modifier .sat goes with .hi only")
        wide = bits * 2 if part == "wide" else bits
        if op == "mul" and part == "lo":
            return np.multiply, (bits, bits), bits
        if op == "mad" and part == "lo":
            return (lambda a, b, d: a * b + d), (bits, bits, bits), bits
        function = getattr(integers, op)
        if op.startswith("mul"):
            return partial(function, kind, part), (bits, bits), wide
        return partial(function, kind, part, sat=sat), (bits, bits, wide), wide
    if op in ("div", "rem"):
        return partial(getattr(integers, op), kind), (bits, bits), bits
    if op in ("min", "max"):
        function = integers.min_ if op == "min" else integers.max_
        return partial(function, kind, relu=c.has("relu")), (bits, bits), bits
    if op in ("abs", "neg"):
        return partial(integers.abs_ if op == "abs" else integers.neg, kind), (bits,), bits
    if op == "sad":
        return partial(integers.sad, kind), (bits, bits, bits), bits
    raise c.error(f"not known for .{kind}")


# -- floats ---------------------------------------------------------------------------------------------


def _float(c: Context, kind: str, bits: int, ftz: bool, sat: bool) -> Plan:
    op = c.i.opcode
    rnd = _rounding(c, "approx", "full")
    two, three = (bits, bits), (bits, bits, bits)
    if op in ("add", "sub", "mul", "fma", "mad"):
        if rnd == "rn" and not ftz and not sat and kind == "f32" and op in _QUICK:
            return _QUICK[op], two, bits
        functions: dict[str, Function] = {"add": floats.add, "sub": floats.sub, "mul": floats.mul}
        function = functions.get(op, floats.fma)
        widths = three if op in ("fma", "mad") else two
        return partial(function, kind, rnd=rnd, ftz=ftz, sat=sat), widths, bits
    if op in ("neg", "abs"):
        return partial(floats.neg if op == "neg" else floats.abs_, kind, ftz=ftz), (bits,), bits
    if op in ("min", "max"):
        function = floats.min_ if op == "min" else floats.max_
        widths = three if len(c.operands(3, 4)) == 4 else two
        if widths is three and (kind != "f32" or c.has("xorsign")):
            raise c.error("three sources are for .f32 without .xorsign only")
        if widths is two and c.has("abs") != c.has("xorsign"):
            raise c.error("modifiers .xorsign and .abs go together")
        options = {"ftz": ftz, "nan": c.has("NaN"), "absolute": c.has("abs"), "xorsign": c.has("xorsign")}
        return partial(function, kind, **options), widths, bits
    if op == "div":
        return partial(floats.div, kind, rnd=rnd, ftz=ftz), two, bits
    if op in ("rcp", "sqrt"):
        if kind == "f64" and ftz != (rnd == "approx"):
            raise c.error("modifiers .approx and .ftz of .f64 go together")
        return partial(getattr(floats, op), kind, rnd=rnd, ftz=ftz), (bits,), bits
    if op == "rsqrt":
        return partial(floats.rsqrt, kind, ftz=ftz), (bits,), bits
    if op in ("sin", "cos", "lg2", "ex2"):
        return partial(getattr(floats, op), ftz=ftz), (bits,), bits
    if op == "tanh":
        return floats.tanh, (bits,), bits
    raise c.error(f"not known for .{kind}")


def _quick(function: Callable[[Any, Any], Any]) -> Function:
    """f32 to nearest is what numpy does; the NaN it makes is made the one of the PTX ISA."""

    def run(a: Array, b: Array) -> Array:
        found = np.asarray(function(a.view(np.float32), b.view(np.float32)))
        bits = found.view(np.uint32)
        nan = found != found
        return np.where(nan, np.uint32(0x7FFFFFFF), bits) if nan.any() else bits

    return run


_QUICK = {"add": _quick(np.add), "sub": _quick(np.subtract), "mul": _quick(np.multiply)}


def _half(c: Context, kind: str, bits: int) -> Plan:
    op = c.i.opcode
    two = (bits, bits)
    options: dict[str, Any] = {name: True for name in ("ftz", "sat", "relu") if c.has(name)}
    if op in ("add", "sub", "mul"):
        return partial(getattr(halves, op), kind, **options), two, bits
    if op == "fma":
        return partial(halves.fma, kind, **options), (bits, bits, bits), bits
    if op in ("neg", "abs"):
        return partial(getattr(halves, op if op == "neg" else "abs_"), kind, **options), (bits,), bits
    if op in ("min", "max"):
        if c.has("abs") != c.has("xorsign"):
            raise c.error("modifiers .xorsign and .abs go together")
        options |= {"nan": c.has("NaN"), "absolute": c.has("abs"), "xorsign": c.has("xorsign")}
        return partial(halves.min_ if op == "min" else halves.max_, kind, **options), two, bits
    if op in ("ex2", "tanh"):
        return partial(getattr(halves, op), kind, **options), (bits,), bits
    raise c.error(f"not known for .{kind}")


# -- bits and fields ------------------------------------------------------------------------------------


def _logical(c: Context, kind: str, bits: int) -> Plan:
    if c.i.opcode == "not":
        return np.invert, (bits,), bits
    if c.i.opcode == "cnot":
        return partial(logic.cnot, kind), (bits,), bits
    return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[c.i.opcode], (bits, bits), bits


def _lop3(c: Context, kind: str, bits: int) -> Plan:
    table = c.integer(c.operands(5)[4])
    return (lambda a, b, d, _: logic.lop3(a, b, d, table)), (32, 32, 32, 32), 32


def _shift(c: Context, kind: str, bits: int) -> Plan:
    amount = c.operands(3)[2]
    function = logic.shl if c.i.opcode == "shl" else logic.shr
    known = amount.value if isinstance(amount, Imm) and amount.kind == "int" else None
    if known is not None and 0 <= known < bits and kind[0] != "s":
        by = UNSIGNED[bits](known)
        direct = np.left_shift if c.i.opcode == "shl" else np.right_shift
        return (lambda a, _: direct(a, by)), (bits, 32), bits
    return partial(function, kind), (bits, 32), bits


def _funnel(c: Context, kind: str, bits: int) -> Plan:
    direction, mode = c.one_of("l", "r"), c.one_of("clamp", "wrap")
    return partial(logic.shf, direction, mode), (32, 32, 32), 32


def _permute(c: Context, kind: str, bits: int) -> Plan:
    mode = next((m for m in c.i.modifiers if m != "b32"), None)
    return partial(logic.prmt, mode=mode), (32, 32, 32), 32


def _count(c: Context, kind: str, bits: int) -> Plan:
    if c.i.opcode == "bfind":
        return partial(logic.bfind, kind, shiftamt=c.has("shiftamt")), (bits,), 32
    return partial(getattr(logic, c.i.opcode), kind), (bits,), 32


def _plain(name: str, widths: Callable[[int], Sequence[int]]) -> Callable[[Context, str, int], Plan]:
    """An instruction whose function takes the type and raw operands."""

    def plan(c: Context, kind: str, bits: int) -> Plan:
        function = getattr(logic, name)
        typed = name in ("brev", "bfe", "bfi")
        return partial(function, kind) if typed else function, widths(bits), bits

    return plan


def _moded(c: Context, kind: str, bits: int) -> Plan:
    mode = c.one_of("clamp", "wrap")
    if c.i.opcode == "bmsk":
        return partial(logic.bmsk, mode), (32, 32), 32
    return partial(logic.szext, mode, kind), (32, 32), 32


def _copysign(c: Context, kind: str, bits: int) -> Plan:
    return partial(floats.copysign, kind), (bits, bits), bits


def _testp(c: Context, kind: str, bits: int) -> Plan:
    return partial(comparing.testp, c.i.modifiers[0], kind), (bits,), 1


_FIXED: dict[str, Callable[[Context, str, int], Plan]] = {
    **dict.fromkeys(("and", "or", "xor", "not", "cnot"), _logical),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("popc", "clz", "bfind"), _count),
    **dict.fromkeys(("bmsk", "szext"), _moded),
    "lop3": _lop3,
    "shf": _funnel,
    "prmt": _permute,
    "brev": _plain("brev", lambda n: (n,)),
    "bfe": _plain("bfe", lambda n: (n, 32, 32)),
    "bfi": _plain("bfi", lambda n: (n, n, 32, 32)),
    "fns": _plain("fns", lambda n: (32, 32, 32)),
    "copysign": _copysign,
    "testp": _testp,
}

# -- instructions with two types ------------------------------------------------------------------------


def _two_types(c: Context, first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
    found = c.i.modifiers[-2:]
    if len(found) != 2 or found[0] not in first or found[1] not in second:
        raise c.error(f"its types are not one of {', '.join(first)} and one of {', '.join(second)}")
    return found[0], found[1]


def _dot(c: Context, kind: str) -> Plan:
    a, b = _two_types(c, ("u32", "s32"), ("u32", "s32"))
    if c.i.opcode == "dp4a":
        c.allow("u32", "s32")
        return partial(integers.dp4a, a, b), (32, 32, 32), 32
    c.allow("lo", "hi", "u32", "s32")
    return partial(integers.dp2a, c.one_of("lo", "hi"), a, b), (32, 32, 32), 32


def _slct(c: Context, kind: str) -> Plan:
    # slct{.ftz}.dtype.{s32,f32}: the last type is that of the condition.
    d_type, _ = _two_types(c, FORMS["slct"][0][0].split(), ("s32", "f32"))
    c.allow("ftz", d_type, kind)
    n = BITS[d_type]
    return partial(comparing.slct, d_type, kind, ftz=c.has("ftz")), (n, n, 32), n


def _set(c: Context, kind: str) -> Plan:
    """set.op{.bool}{.ftz}.dtype.stype d, a, b{, c}."""
    results = ("u16", "s16", "u32", "s32", "f16", "bf16", "f32", "f16x2", "bf16x2")
    d_type, _ = _two_types(c, results, COMPARED)
    c.allow(*COMPARE, "and", "or", "xor", "ftz", d_type, kind)
    operator = operator_of(c, kind)
    boolean = next((m for m in c.i.modifiers if m in ("and", "or", "xor")), None)
    ftz, bits = c.has("ftz"), BITS[kind]
    if boolean is None:
        return (
            (lambda a, b: comparing.set_(d_type, kind, operator, a, b, ftz=ftz)),
            (bits, bits),
            BITS[d_type],
        )
    return (
        (lambda a, b, p: comparing.set_(d_type, kind, operator, a, b, boolean, p, ftz)),
        (bits, bits, 1),
        BITS[d_type],
    )


_TYPED: dict[str, Callable[[Context, str], Plan]] = {"dp4a": _dot, "dp2a": _dot, "slct": _slct, "set": _set}


def operator_of(c: Context, kind: str) -> str:
    """The comparison, which must be one of the type's."""
    found = c.one_of(*COMPARE)
    known: tuple[str, ...]
    if kind[0] == "b" and not kind.startswith("bf"):
        known = ("eq", "ne")
    elif kind[0] in "us":
        known = ("eq", "ne", "lt", "le", "gt", "ge") + (("lo", "ls", "hi", "hs") if kind[0] == "u" else ())
    else:
        known = tuple(o for o in COMPARE if o not in ("lo", "ls", "hi", "hs"))
    if found not in known:
        raise c.error(f"comparison .{found} of .{kind} is not one of {', '.join('.' + o for o in known)}")
    return found


# -- carries --------------------------------------------------------------------------------------------


def with_carry(c: Context) -> Step:
    """add.cc, addc{.cc}, sub.cc, subc{.cc}, mad.cc, madc{.cc}: the carry flag is each thread's own."""
    kind = c.i.modifiers[-1]
    opcode = c.i.opcode
    product = opcode.startswith("mad")
    parts = ("lo", "hi") if product else ()
    c.allow("cc", *parts, "u32", "s32", "u64", "s64")
    bits = BITS[kind]
    target, *sources = c.operands(4 if product else 3)
    reads = [c.value(o, bits, kind) for o in sources]
    write = c.dest(target, bits)
    sets, uses = c.has("cc"), opcode.endswith("c")
    function: Callable[..., tuple[Array, Array]]
    if product:
        function = partial(integers.madc, kind, "hi" if c.has("hi") else "lo")
    else:
        function = partial(integers.addc if opcode.startswith("add") else integers.subc, kind)

    def step(w: Wave) -> None:
        found, out = function(*(r(w) for r in reads), w.carry() if uses else None)
        write(w, found)
        if sets:
            w.set_carry(w.whole(out))

    return step


__all__ = ["COMPARE", "OPCODES", "ROUND", "arithmetic", "operator_of", "with_carry"]
