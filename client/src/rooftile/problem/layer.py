"""What is left of a Problem when its run-time sizes are not known yet?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooftile.errors import MISSING, FieldError
from rooftile.problem.canonical import canonical_json, sha256_key
from rooftile.problem.dtypes import nearest_name
from rooftile.problem.parse import Problem, check_op, parse_problem

OPEN_SIZES: dict[str, tuple[str, ...]] = {"gemm": ("m", "batch"), "attention": ("batch", "seq_q", "seq_kv")}

# Stand-ins for open sizes while the rest is checked: 0 is legal for every one that has no lower bound, and
# breaks no rule that a real size would keep.
_STAND_IN = {"m": 0, "batch": 1, "seq_q": 0, "seq_kv": 0}


@dataclass(frozen=True)
class Layer:
    """A Problem with m and batch, or batch and the sequence lengths, left open. Made by `Problem.layer()` or
    `parse_layer`."""

    text: str
    """Canonical JSON of what is fixed, without the open sizes."""

    @classmethod
    def of(cls, problem: Problem) -> Layer:
        """The layer that `problem` is one size of."""
        fields = problem.to_json()
        for name in OPEN_SIZES[problem.op]:
            del fields[name]
        return cls(canonical_json(fields | {"open": list(OPEN_SIZES[problem.op])}))

    @property
    def op(self) -> str:
        """gemm or attention."""
        return str(self.to_json()["op"])

    @property
    def open(self) -> tuple[str, ...]:
        """Names of the sizes that are left open."""
        return OPEN_SIZES[self.op]

    def to_json(self) -> dict[str, Any]:
        """The problem's fields without the open sizes, whose names are listed under `open`."""
        fields: dict[str, Any] = json.loads(self.text)
        return fields

    def canonical(self) -> str:
        """The text that the key is the hash of."""
        return self.text

    @property
    def key(self) -> str:
        """layer_key: sha256 of the canonical JSON."""
        return sha256_key(self.to_json())

    def at(self, **sizes: int) -> Problem:
        """The Problem at these sizes; batch is 1, and seq_kv is seq_q, unless given."""
        fields = self.to_json()
        for name in sizes:
            if name not in self.open:
                allowed = f"one of the open sizes {', '.join(self.open)}"
                raise FieldError(name, sizes[name], allowed, nearest_name(name, self.open))
        del fields["open"]
        return parse_problem(fields | sizes)

    def title(self) -> str:
        """One short line for people, open sizes as `*`."""
        problem = self.at(**{name: _STAND_IN[name] for name in self.open})
        words = problem.title()
        if problem.op == "gemm":
            return words.replace("gemm 0x", "gemm *x", 1)
        return words.replace("attention 1x", "attention *x", 1).replace(" 0x0 ", " *x* ", 1)


def parse_layer(obj: object) -> Layer:
    """The Layer that decoded JSON describes: a problem's JSON without its open sizes (a `Layer.to_json()` is
    one). A size that is given although it is open is refused."""
    op = check_op(obj)
    assert isinstance(obj, Mapping)
    fields = dict(obj)
    listed = fields.pop("open", MISSING)
    if listed is not MISSING and listed != list(OPEN_SIZES[op]):
        raise FieldError("open", listed, f"[{', '.join(OPEN_SIZES[op])}]")
    for name in OPEN_SIZES[op]:
        if name in fields:
            raise FieldError(name, fields[name], "left out: a layer leaves it open")
        fields[name] = _STAND_IN[name]
    return parse_problem(fields).layer()
