"""Is one field of a request what it may be? The checks that GEMM and attention share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rooftile.errors import MISSING, FieldError, show_value
from rooftile.problem.bucket import MAX_SIZE
from rooftile.problem.dtypes import SCALE_DTYPE_BITS, nearest_name, one_of

MAX_BYTES = 2**63 - 1

SCALE_BLOCKS: tuple[str | int, ...] = ("tensor", "row", "1x128", "128x128", 32, 16)

# Which block a scale's dtype can have: f32 is the software kind; ue8m0 is OCP MX (32) or DeepSeek's blocks
# with power-of-two scales; ue4m3 is NVFP4 (16).
_BLOCKS_OF: dict[str, tuple[str | int, ...]] = {
    "f32": ("tensor", "row", "1x128", "128x128"),
    "ue8m0": ("1x128", "128x128", 32),
    "ue4m3": (16,),
}


def whole(field: str, value: object, low: int, high: int = MAX_SIZE) -> int:
    """A whole number in range. JSON's 8.0 is not one: sizes that went through a float may have lost bits."""
    allowed = f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        meant = None
        if isinstance(value, float) and math.isfinite(value):
            meant = int(value) if value.is_integer() else None
        elif isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
            meant = int(value)
        nearest = meant if meant is not None and low <= meant <= high else None
        raise FieldError(field, value, allowed, nearest)
    if not low <= value <= high:
        raise FieldError(field, value, allowed, low if value < low else high)
    return int(value)


def flag(field: str, value: object) -> bool:
    """true or false, nothing that merely looks like it."""
    if isinstance(value, bool):
        return value
    meant = {0: "false", 1: "true"}.get(value) if isinstance(value, int) else None
    raise FieldError(field, value, "true or false", meant)


def positive_number(field: str, value: object) -> float | None:
    """null, or a finite number above zero."""
    if value is None:
        return None
    if not isinstance(value, bool) and isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and number > 0:
            return number
    raise FieldError(field, value, "null or a finite number above 0")


def choice_or_null(field: str, value: object, names: tuple[str, ...]) -> str | None:
    """null or one of `names`."""
    if value is None:
        return None
    if isinstance(value, str) and value in names:
        return value
    raise FieldError(field, value, f"null or one of {', '.join(names)}", nearest_name(value, names))


def members(field: str, value: object, names: Iterable[str], otherwise: str = "") -> dict[str, object]:
    """The members of a JSON object, none of them unknown."""
    names = tuple(names)
    if not isinstance(value, Mapping):
        listed = ", ".join(names)
        raise FieldError(field, value, f"an object with the members {listed}{otherwise}")
    prefix = f"{field}." if field else ""
    for name in value:
        if not isinstance(name, str) or name not in names:
            shown = (name or '""') if isinstance(name, str) and len(name) <= 64 else "..."
            raise FieldError(
                f"{prefix}{shown}",
                value[name],
                f"no such field; {'the fields are' if not field else f'{field} has'} {', '.join(names)}",
                nearest_name(name, names),
            )
    return dict(value)


def required(fields: Mapping[str, object], name: str, allowed: str) -> object:
    """The value of a field that has no default."""
    value = fields.get(name, MISSING)
    if value is MISSING:
        raise FieldError(name, MISSING, allowed)
    return value


def schema_one(value: object) -> None:
    """The only schema number there is so far."""
    if isinstance(value, bool) or not isinstance(value, int) or value != 1:
        raise FieldError("schema", value, "1, the only schema so far", 1)


def scale_spec(field: str, value: object) -> tuple[str, str | int] | None:
    """null or a legal (dtype, block) pair of an operand's scales."""
    if value is None:
        return None
    given = members(field, value, ("dtype", "block"), " or null")
    if "dtype" not in given:
        raise FieldError(f"{field}.dtype", MISSING, f"one of {', '.join(SCALE_DTYPE_BITS)}")
    dtype = one_of(f"{field}.dtype", given["dtype"], tuple(SCALE_DTYPE_BITS))
    block = given.get("block", MISSING)
    legal = _BLOCKS_OF[dtype]
    if isinstance(block, (str, int)) and not isinstance(block, bool) and block in legal:
        return dtype, block
    text = f"one of {', '.join(str(b) for b in legal)} with {field}.dtype {dtype}"
    meant = next((b for b in legal if str(b) == show_value(block).strip("'").lower()), None)
    if meant is None and len(legal) == 1 and isinstance(block, (str, int)) and block in SCALE_BLOCKS:
        meant = legal[0]
    raise FieldError(f"{field}.block", block, text, meant)


def fits_in_memory(operand: str, factors: Mapping[str, int], bits: int) -> None:
    """Refuses an operand whose bytes do not fit in a signed 64-bit number; names its largest size."""
    total = bits
    for factor in factors.values():
        total *= factor
    if -(-total // 8) > MAX_BYTES:
        field = max(factors, key=lambda name: factors[name])
        allowed = f"smaller: operand {operand} would span {-(-total // 8)} bytes, over 2^63-1"
        raise FieldError(field, factors[field], allowed)
