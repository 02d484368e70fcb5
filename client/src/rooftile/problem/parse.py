"""Which Problem does a piece of JSON describe, or what exactly is wrong with it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from rooftile.errors import MISSING, FieldError
from rooftile.problem.attention import ATTENTION_FIELDS, Attention
from rooftile.problem.dtypes import DTYPES, nearest_name, one_of
from rooftile.problem.fields import members, required, schema_one
from rooftile.problem.gemm import GEMM_FIELDS, Gemm

Problem: TypeAlias = Gemm | Attention

OPS = ("gemm", "attention")
# Names that are spoken for: refused like any other, but with the reason.
LATER_OPS = ("grouped_gemm", "mla_decode", "attention_backward")

_SIZE = "a whole number from 0 to 2147483647"
_COUNT = "a whole number from 1 to 2147483647"
_DTYPE = f"one of {', '.join(DTYPES)}, or an object with one for each operand"
_REQUIRED = {
    "gemm": {"m": _SIZE, "n": _SIZE, "k": _SIZE, "dtype": _DTYPE},
    "attention": {"heads_q": _COUNT, "seq_q": _SIZE, "head_dim": _COUNT, "dtype": _DTYPE},
}
FIELDS_OF = {"gemm": GEMM_FIELDS, "attention": ATTENTION_FIELDS}


def check_op(fields: object) -> str:
    """The op of a JSON object that is to become a Problem or a Layer."""
    if not isinstance(fields, Mapping):
        raise FieldError("problem", fields, "an object with op, its sizes and dtype")
    op = fields.get("op", MISSING)
    listed = f"one of {', '.join(OPS)}"
    if op is MISSING:
        raise FieldError("op", MISSING, listed)
    if isinstance(op, str) and op in LATER_OPS:
        raise FieldError("op", op, f"{listed}; {op} is not built yet", nearest_name(op, OPS))
    return one_of("op", op, OPS)


def parse_problem(obj: object) -> Problem:
    """The Problem that decoded JSON describes. Every wrong field is a FieldError with its name."""
    op = check_op(obj)
    fields = members("", obj, FIELDS_OF[op])
    schema_one(fields.pop("schema", 1))
    del fields["op"]
    for name, allowed in _REQUIRED[op].items():
        required(fields, name, allowed)
    for name in [n for n, v in fields.items() if v is None and n in _NULL_REFUSED[op]]:
        raise FieldError(name, None, _NULL_REFUSED[op][name])
    arguments: dict[str, Any] = fields
    return Gemm(**arguments) if op == "gemm" else Attention(**arguments)


# The constructors read None as "the default"; in JSON an explicit null is only allowed where it is a value.
_OBJECT = "an object, or left out"
_NULL_REFUSED: dict[str, dict[str, str]] = {
    "gemm": {"layout": _OBJECT, "ld": _OBJECT, "align": _OBJECT, "scale": _OBJECT, "epilogue": _OBJECT},
    "attention": {
        "heads_kv": _COUNT,
        "seq_kv": _SIZE,
        "head_dim_v": _COUNT,
        "scales": _OBJECT,
        "kv": _OBJECT,
    },
}
