"""Arithmetic, logic, comparisons, moves and conversions: which function of emulator.arith, on which operands?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from emulator.kernel import BITS
from emulator.machine.decode.context import SIGNED, UNSIGNED, Context, Reader
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Operand, Pair, Reg, Vector

Function: TypeAlias = Callable[..., Array]

OPCODES = (
    "add", "sub", "mul", "mad", "fma", "and", "or", "xor", "not", "shl", "shr", "min", "max", "neg", "abs",
    "div", "rem", "bfe",
)  # fmt: skip


def arithmetic(c: Context) -> Step:
    kind = c.i.modifiers[-1]
    bits = BITS[kind]
    wide = c.has("wide")
    ops = c.i.operands
    f = _simple(c, kind, bits)
    if c.i.opcode in ("shl", "shr"):
        reads = [c.value(ops[1], bits), c.value(ops[2], 32)]
    elif kind == "pred":
        reads = [c.predicate(o) for o in ops[1:]]
    elif wide and c.i.opcode == "mad":
        reads = [c.value(ops[1], bits, kind), c.value(ops[2], bits, kind), c.value(ops[3], 2 * bits, kind)]
    else:
        reads = [c.value(o, bits, kind) for o in ops[1:]]
    write = c.dest(ops[0], bits * 2 if wide else bits, kind[0] == "s")
    if len(reads) == 1:
        (a,) = reads
        return lambda w: write(w, f(a(w)))
    if len(reads) == 2:
        a, b = reads
        return lambda w: write(w, f(a(w), b(w)))
    a, b, d = reads
    return lambda w: write(w, f(a(w), b(w), d(w)))


def _simple(c: Context, kind: str, bits: int) -> Function:
    op = c.i.opcode
    u, s = UNSIGNED[bits], SIGNED.get(bits)
    if op in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
    if op == "not":
        return np.bitwise_not
    if kind in ("f32", "f64"):
        fl = np.float32 if bits == 32 else np.float64
        if op in ("add", "sub", "mul"):
            g = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
            return lambda a, b: g(a.view(fl), b.view(fl)).view(u)
        if op in ("fma", "mad"):
            return lambda a, b, d: (a.view(fl).astype(np.float64) * b.view(fl) + d.view(fl)).astype(fl).view(u)
        if op == "neg":
            return lambda a: a ^ u(1 << (bits - 1))
    if op in ("add", "sub") :
        return {"add": np.add, "sub": np.subtract}[op]
    if op in ("mul", "mad"):
        if c.has("wide"):
            w2 = SIGNED[2 * bits] if kind[0] == "s" else UNSIGNED[2 * bits]
            n = s if kind[0] == "s" else u
            u2 = UNSIGNED[2 * bits]
            m = lambda a, b: (a.view(n).astype(w2) * b.view(n).astype(w2)).view(u2)
            return m if op == "mul" else (lambda a, b, d: m(a, b) + d)
        if c.has("lo"):
            return np.multiply if op == "mul" else (lambda a, b, d: a * b + d)
    if op in ("min", "max"):
        g = np.minimum if op == "min" else np.maximum
        n = s if kind[0] == "s" else u
        return lambda a, b: g(a.view(n), b.view(n)).view(u)
    if op == "shl":
        return lambda a, b: np.where(b < bits, a << np.minimum(b, bits - 1).astype(u), 0).astype(u)
    if op == "shr":
        if kind[0] == "s":
            return lambda a, b: (a.view(s) >> np.minimum(b, bits - 1).astype(s)).view(u)
        return lambda a, b: np.where(b < bits, a >> np.minimum(b, bits - 1).astype(u), 0).astype(u)
    if op == "bfe":
        def bfe(a, p, l):
            a = a.view(s if kind[0]=="s" else u).astype(np.int64); p=p.astype(np.int64)&255; l=l.astype(np.int64)&255
            x=(a>>p)&((1<<l)-1)
            if kind[0]=="s": x=np.where((x>>(l-1))&1, x-(1<<l), x)
            return x.astype(u)
        return bfe
    if op in ("div", "rem"):
        n = s if kind[0] == "s" else u
        def dv(a, b):
            a, b = np.broadcast_arrays(a.view(n), b.view(n))
            z = b == 0
            bb = np.where(z, 1, b).astype(np.int64); aa = a.astype(np.int64)
            q = (np.abs(aa) // np.abs(bb)) * np.sign(aa) * np.sign(bb)
            r = q if op == "div" else aa - q * bb
            return np.where(z, -1, r).astype(n).view(u)
        return dv
    raise c.error("arith")


def move(c: Context) -> Step:
    """mov.type d, a; also the packing and unpacking of vectors."""
    kind = c.i.modifiers[-1]
    c.allow(kind)
    target, source = c.operands(2)
    if kind == "pred":
        read, write = c.predicate(source), c.dest(target, 1)
    else:
        read, write = c.value(source, BITS[kind], kind), c.dest(target, BITS[kind])
    return lambda w: write(w, read(w))


def compare(c: Context) -> Step:
    kind = c.i.modifiers[-1]
    op = c.i.modifiers[0]
    bits = BITS[kind]
    ops = c.i.operands
    a, b = c.value(ops[1], bits, kind), c.value(ops[2], bits, kind)
    view = SIGNED[bits] if kind[0] == "s" else (np.float32 if kind == "f32" else UNSIGNED[bits])
    f = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
         "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}[op]
    write = c.dest(ops[0], 1)
    extra = c.predicate(ops[3]) if len(ops) > 3 else None
    return lambda w: write(w, f(a(w).view(view), b(w).view(view)))


def select(c: Context) -> Step:
    kind = c.i.modifiers[-1]
    bits = BITS[kind]
    d, a, b, p = c.operands(4)
    ra, rb, rp, write = c.value(a, bits, kind), c.value(b, bits, kind), c.predicate(p), c.dest(d, bits)
    return lambda w: write(w, np.where(rp(w), ra(w), rb(w)))


def convert(c: Context) -> Step:
    to, frm = c.i.modifiers[-2:]
    d, a = c.operands(2)
    r, write = c.value(a, BITS[frm], frm), c.dest(d, BITS[to], to[0] == "s")
    if frm in ("f32",) and to == "bf16":
        def cv(w):
            x = r(w).astype(np.uint64)
            return write(w, ((x + 0x7FFF + ((x >> 16) & 1)) >> 16).astype(np.uint16))
        return cv
    if frm[0] in "us" and to[0] in "us":
        n = SIGNED[BITS[frm]] if frm[0] == "s" else UNSIGNED[BITS[frm]]
        return lambda w: write(w, r(w).view(n).astype(UNSIGNED[BITS[to]]))
    raise c.error("cvt")
