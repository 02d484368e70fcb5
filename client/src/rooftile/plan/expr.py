"""What is the value of an integer expression over the named sizes?

Expressions decide grids, offsets and workspace sizes on the user's machine and come over the network, so they
are integers only, checked against 64 bits at every step, and bounded in depth and length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from rooftile.errors import PlanError, show_value

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
MAX_DEPTH = 32
MAX_NODES = 1000

OPERATORS = ("+", "-", "*", "ceil_div", "min", "max")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)

Expr: TypeAlias = Union[int, str, "Op"]
ExprLike: TypeAlias = Union[int, str, "Op", Mapping[str, Any]]
"""An expression, or the JSON of one."""


@dataclass(frozen=True)
class Op:
    """An operator over expressions: `-` and `ceil_div` take two, the others two or more."""

    op: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise PlanError(f"operator {show_value(self.op)} is not one of {' '.join(OPERATORS)}")
        exact = self.op in ("-", "ceil_div")
        if len(self.args) != 2 if exact else len(self.args) < 2:
            wanted = "two" if exact else "two or more"
            raise PlanError(f"{self.op} takes {wanted} arguments, not {len(self.args)}")


def add(*args: ExprLike) -> Op:
    """The sum."""
    return Op("+", tuple(parse_expr(a) for a in args))


def sub(left: ExprLike, right: ExprLike) -> Op:
    """left - right."""
    return Op("-", (parse_expr(left), parse_expr(right)))


def mul(*args: ExprLike) -> Op:
    """The product."""
    return Op("*", tuple(parse_expr(a) for a in args))


def ceil_div(value: ExprLike, divisor: ExprLike) -> Op:
    """value / divisor, rounded up; the divisor must come out positive."""
    return Op("ceil_div", (parse_expr(value), parse_expr(divisor)))


def minimum(*args: ExprLike) -> Op:
    """The least."""
    return Op("min", tuple(parse_expr(a) for a in args))


def maximum(*args: ExprLike) -> Op:
    """The greatest."""
    return Op("max", tuple(parse_expr(a) for a in args))


def parse_expr(obj: object, where: str = "expression") -> Expr:
    """The expression that `obj` (an Expr, or its JSON) is; PlanError says where it is wrong."""
    budget = [MAX_NODES]
    return _parse(obj, where, 1, budget)


def _parse(obj: object, where: str, depth: int, budget: list[int]) -> Expr:
    budget[0] -= 1
    if depth > MAX_DEPTH or budget[0] < 0:
        raise PlanError(f"{where}: deeper than {MAX_DEPTH} levels or longer than {MAX_NODES} terms")
    if isinstance(obj, Op):
        return Op(obj.op, tuple(_parse(a, where, depth + 1, budget) for a in obj.args))
    if isinstance(obj, bool):
        raise PlanError(f"{where}: {obj} is not an integer")
    if isinstance(obj, int):
        return _in_64_bits(obj, where)
    if isinstance(obj, str):
        return check_name(obj, where)
    if not isinstance(obj, Mapping):
        raise PlanError(f"{where}: {show_value(obj)} is not an integer, a name or an operator")
    if set(obj) != {"op", "args"}:
        raise PlanError(f"{where}: an operator has exactly op and args")
    op, args = obj["op"], obj["args"]
    if not isinstance(op, str):
        raise PlanError(f"{where}.op: {show_value(op)} is not one of {' '.join(OPERATORS)}")
    if not isinstance(args, (list, tuple)):
        raise PlanError(f"{where}.args: {show_value(args)} is not a list")
    try:
        return Op(op, tuple(_parse(a, where, depth + 1, budget) for a in args))
    except PlanError as error:
        if str(error).startswith(where):
            raise
        raise PlanError(f"{where}: {error}") from None


def expr_json(expr: Expr) -> Any:
    """The JSON of an expression."""
    return {"op": expr.op, "args": [expr_json(a) for a in expr.args]} if isinstance(expr, Op) else expr


def names_in(expr: Expr) -> Iterator[str]:
    """The names an expression uses."""
    if isinstance(expr, str):
        yield expr
    elif isinstance(expr, Op):
        for arg in expr.args:
            yield from names_in(arg)


def evaluate(expr: ExprLike, names: Mapping[str, int]) -> int:
    """The value of `expr`, every step of it within a signed 64-bit integer."""
    # Plans hold their expressions parsed; doing it again at every launch would cost more than the arithmetic.
    return _evaluate(parse_expr(expr) if isinstance(expr, Mapping) else expr, names)


def _evaluate(expr: Expr, names: Mapping[str, int]) -> int:
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        value = names.get(expr)
        if value is None:
            raise PlanError(f"the plan needs {expr}, which is not given")
        if isinstance(value, bool) or not isinstance(value, int):
            raise PlanError(f"{expr} = {show_value(value)} is not an integer")
        return _in_64_bits(value, expr)
    values = [_evaluate(arg, names) for arg in expr.args]
    if expr.op == "min":
        return min(values)
    if expr.op == "max":
        return max(values)
    result = values[0]
    for value in values[1:]:
        if expr.op == "+":
            result += value
        elif expr.op == "-":
            result -= value
        elif expr.op == "*":
            result *= value
        else:
            if value <= 0:
                raise PlanError(f"ceil_div by {value}")
            result = -(-result // value)
        _in_64_bits(result, expr.op)
    return result


def _in_64_bits(value: int, where: str) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise PlanError(f"{where}: the value does not fit in 64 bits")
    return value


def check_name(value: object, where: str) -> str:
    """`value` when it can be the name of a size, entry, argument or buffer."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise PlanError(f"{where}: {show_value(value)} is not a name (a-z, then a-z 0-9 _)")
    return value
