"""mov, setp, selp, cvt (PTX ISA 9.7.6, 9.7.9)."""

from __future__ import annotations

import numpy as np

from emulator.arith import compare as comparing
from emulator.arith import convert as converting
from emulator.kernel import BITS, plain_move
from emulator.machine.decode.alu import COMPARE, ROUND, operator_of
from emulator.machine.decode.context import Context
from emulator.machine.decode.forms import COMPARED, type_of
from emulator.machine.wave import Step, Wave
from emulator.ptx.nodes import Imm, Reg, Sink


def move(c: Context) -> Step:
    """mov.type d, a; also packing and unpacking of vectors."""
    kind = type_of(c)
    target, source = c.operands(2)
    if kind == "pred":
        read, write = c.predicate(source), c.dest(target, 1)
    elif BITS[kind] == 128:
        raise c.error("type .b128 is not known here")
    else:
        read, write = c.value(source, BITS[kind], kind), c.dest(target, BITS[kind])
    pair = plain_move(c.i)
    if pair is not None and pair[0] in c.kernel.warpgroup_registers:
        to, of = pair
        return lambda w: w.warpgroups.held.move(to, of)
    if isinstance(target, Reg) and target.index in c.kernel.warpgroup_registers and isinstance(source, Imm):
        constant = target.index
        return lambda w: w.warpgroups.held.set(constant, read(w))
    return lambda w: write(w, read(w))


def compare(c: Context) -> Step:
    """setp.op{.bool}{.ftz}.type p{|q}, a, b{, c}."""
    kind = c.i.modifiers[-1]
    if kind not in COMPARED:
        raise c.error(f"type .{kind} cannot be compared")
    c.allow(*COMPARE, "and", "or", "xor", "ftz", kind)
    operator = operator_of(c, kind)
    boolean = next((m for m in c.i.modifiers if m in ("and", "or", "xor")), None)
    ops = c.operands(3, 4)
    bits = BITS[kind]
    a, b = c.value(ops[1], bits, kind), c.value(ops[2], bits, kind)
    with_ = c.predicate(ops[3]) if len(ops) == 4 else None
    if (with_ is None) != (boolean is None):
        raise c.error("a third operand and a boolean operation go together")
    ftz = c.has("ftz")
    target, q = c.two(ops[0])
    write_p, write_q = c.dest(target, 1), c.dest(q, 1)

    def step(w: Wave) -> None:
        third = None if with_ is None else with_(w)
        p, second = comparing.setp(kind, operator, a(w), b(w), boolean, third, ftz)
        write_p(w, p)
        write_q(w, second)

    if isinstance(q, Sink) and boolean is None and kind not in ("f16x2", "bf16x2"):
        return lambda w: write_p(w, comparing.compare(kind, operator, a(w), b(w), ftz))
    return step


def select(c: Context) -> Step:
    """selp.type d, a, b, p."""
    kind = type_of(c)
    bits = BITS[kind]
    d, a, b, p = c.operands(4)
    read_a, read_b, read_p = c.value(a, bits, kind), c.value(b, bits, kind), c.predicate(p)
    write = c.dest(d, bits)
    return lambda w: write(w, np.where(read_p(w), read_a(w), read_b(w)))


_PACKED = {"e4m3x2": 16, "e5m2x2": 16, "e2m3x2": 16, "e3m2x2": 16, "e2m1x2": 8, "ue8m0x2": 16}
_WHOLE = tuple(f"{s}{n}" for s in "us" for n in (8, 16, 32, 64))
_TO_WHOLE = ("rni", "rzi", "rmi", "rpi")


def convert(c: Context) -> Step:
    """cvt{.rounding}{.ftz}{.sat}.dtype.atype, and the packed forms."""
    if len(c.i.modifiers) < 2:
        raise c.error("not two types")
    d_type, a_type = c.i.modifiers[-2:]
    flags = c.i.modifiers[:-2]
    if c.has("pack", "rs"):
        raise c.error("cvt.pack and stochastic rounding (.rs) are not known here")
    source, result = _width(c, a_type), _width(c, d_type)
    c.allow("rn", "rz", "rm", "rp", "rna", *_TO_WHOLE, "ftz", "sat", "satfinite", "relu", d_type, a_type)
    rnd = next((m for m in flags if m in ROUND or m in _TO_WHOLE), None)
    if (d_type in _WHOLE) != (rnd in _TO_WHOLE) and a_type not in _WHOLE and d_type != a_type:
        raise c.error(
            "a conversion to whole numbers, and no other, needs a rounding .rni, .rzi, .rmi or .rpi"
        )
    options = {name: True for name in ("ftz", "sat", "satfinite", "relu") if name in flags}
    # A narrow number may lie in a wider register (PTX ISA 9.4.1).
    write = c.dest(c.operands(2, 3)[0], result, d_type[0] == "s", wider=True)
    if len(c.i.operands) == 3:
        # Two values packed into one register; the first goes to the upper half.
        if not d_type.endswith("x2") or a_type != "f32":
            raise c.error("3 operands, not 2")
        high, low = (c.value(op, source, a_type, wider=True) for op in c.i.operands[1:])
        return lambda w: write(w, converting.cvt(d_type, a_type, high(w), low(w), rnd=rnd, **options))
    if d_type.endswith("x2") != a_type.endswith("x2"):
        raise c.error("2 operands, not 3" if a_type == "f32" else "a pair and a single number")
    read = c.value(c.i.operands[1], source, a_type, wider=True)
    return lambda w: write(w, converting.cvt(d_type, a_type, read(w), rnd=rnd, **options))


def _width(c: Context, kind: str) -> int:
    if kind in _PACKED:
        return _PACKED[kind]
    if kind in (*_WHOLE, "f16", "bf16", "f32", "f64", "tf32", "f16x2", "bf16x2"):
        return BITS[kind]
    raise c.error(f"type .{kind} is not known here")


__all__ = ["compare", "convert", "move", "select"]
