"""Which types may an arithmetic instruction have, and which modifiers with each?

From the syntax sections of PTX ISA 9.7.1 to 9.7.8. What is not listed is refused with its line, so that
nothing is skipped in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

from emulator.machine.decode.context import Context

_WHOLE = "u16 u32 u64 s16 s32 s64"
_BITS = "b16 b32 b64"
_ANY = f"{_BITS} {_WHOLE} f32 f64"
_ROUND = "rn rz rm rp"
_F16, _BF16 = "f16 f16x2", "bf16 bf16x2"
_NUMBERS = ((_F16, "rn ftz sat"), (_BF16, "rn"))
_SUMS = (("f32", f"{_ROUND} ftz sat"), ("f32x2", f"{_ROUND} ftz"), ("f64", _ROUND), *_NUMBERS)
_EXTREMES = (
    (f"{_WHOLE} u16x2 s16x2", ""), ("s32 s16x2", "relu"), ("f32 f16 f16x2", "ftz NaN xorsign abs"),
    (_BF16, "NaN xorsign abs"), ("f64", ""),
)  # fmt: skip
_SIGNS = (("s16 s32 s64 f64", ""), ("f32", "ftz"), (_F16, "ftz"), (_BF16, ""))

FORMS: dict[str, tuple[tuple[str, str], ...]] = {
    "add": ((f"{_WHOLE} u16x2 s16x2", ""), ("s32", "sat"), *_SUMS),
    "sub": ((_WHOLE, ""), ("s32", "sat"), *_SUMS),
    "mul": (("u16 s16 u32 s32", "lo hi wide"), ("u64 s64", "lo hi"), *_SUMS),
    "mad": (
        ("u16 s16 u32 s32", "lo hi wide"), ("u64 s64", "lo hi"), ("s32", "sat"), ("f32", f"{_ROUND} ftz sat"),
        ("f64", _ROUND),
    ),
    "fma": (
        ("f32", f"{_ROUND} ftz sat"), ("f32x2", f"{_ROUND} ftz"), ("f64", _ROUND), (_F16, "rn ftz sat relu"),
        (_BF16, "rn relu"),
    ),
    "mul24": (("u32 s32", "lo hi"),),
    "mad24": (("u32 s32", "lo hi"), ("s32", "sat")),
    "sad": ((_WHOLE, ""),),
    "div": ((_WHOLE, ""), ("f32", f"{_ROUND} approx full ftz"), ("f64", _ROUND)),
    "rem": ((_WHOLE, ""),),
    "abs": _SIGNS,
    "neg": (*_SIGNS, ("f32x2", "")),
    "min": _EXTREMES,
    "max": _EXTREMES,
    "popc": (("b32 b64", ""),),
    "clz": (("b32 b64", ""),),
    "bfind": (("u32 u64 s32 s64", "shiftamt"),),
    "fns": (("b32", ""),),
    "brev": (("b32 b64", ""),),
    "bfe": (("u32 u64 s32 s64", ""),),
    "bfi": (("b32 b64", ""),),
    "bmsk": (("b32", "clamp wrap"),),
    "szext": (("u32 s32", "clamp wrap"),),
    **dict.fromkeys(("and", "or", "xor", "not"), ((f"{_BITS} pred", ""),)),
    "cnot": ((_BITS, ""),),
    "lop3": (("b32", ""),),
    "shl": ((_BITS, ""),),
    "shr": ((f"{_BITS} {_WHOLE}", ""),),
    "shf": (("b32", "l r clamp wrap"),),
    "prmt": (("b32", "f4e b4e rc8 ecl ecr rc16"),),
    "rcp": (("f32", f"{_ROUND} approx ftz"), ("f64", f"{_ROUND} approx ftz")),
    "sqrt": (("f32", f"{_ROUND} approx ftz"), ("f64", _ROUND)),
    "rsqrt": (("f32 f64", "approx ftz"),),
    "sin": (("f32", "approx ftz"),),
    "cos": (("f32", "approx ftz"),),
    "lg2": (("f32", "approx ftz"),),
    "ex2": ((f"f32 {_F16} {_BF16}", "approx ftz"),),
    "tanh": ((f"f32 {_F16} {_BF16}", "approx"),),
    "copysign": (("f32 f64", ""),),
    "testp": (("f32 f64", "finite infinite number notanumber normal subnormal"),),
    "selp": ((_ANY, ""),),
    "slct": ((_ANY, "ftz"),),
    "mov": ((f"{_ANY} pred b128", ""),),
}  # fmt: skip
COMPARED = f"{_ANY} f16 f16x2 bf16 bf16x2".split()
"""Types of setp and set."""


def type_of(c: Context) -> str:
    """The type of the instruction, whose form is checked."""
    known = FORMS[c.i.opcode]
    # prmt has its mode behind the type.
    types = {t for names, _ in known for t in names.split()}
    kind = next((m for m in reversed(c.i.modifiers) if m in types), None)
    if kind is None:
        last = c.i.modifiers[-1] if c.i.modifiers else ""
        raise c.error(f"type .{last} is not one of {_list(types)}" if last else "no type at its end")
    allowed = [m for names, modifiers in known if kind in names.split() for m in modifiers.split()]
    c.allow(kind, *allowed)
    return kind


def _list(names: Iterable[str]) -> str:
    return ", ".join(f".{n}" for n in sorted(names))


__all__ = ["COMPARED", "FORMS", "type_of"]
