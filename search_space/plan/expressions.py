"""How does a planner write expressions that stay short?

The operators of `rooftile.plan` with constants worked out as they are put together: x * 1 is x, and two
numbers are
one number.
"""

from __future__ import annotations

from rooftile.plan import Expr, Op


def _fold(op: str, neutral: int | None, args: tuple[Expr, ...]) -> Expr:
    numbers = [a for a in args if isinstance(a, int)]
    others: list[Expr] = []
    for a in args:
        if isinstance(a, Op) and a.op == op:
            numbers += [x for x in a.args if isinstance(x, int)]
            others += [x for x in a.args if not isinstance(x, int)]
        elif not isinstance(a, int):
            others.append(a)
    if op in ("min", "max"):
        others = list(dict.fromkeys(others))
    if numbers:
        value = numbers[0]
        for x in numbers[1:]:
            value = {"+": value + x, "*": value * x, "min": min(value, x), "max": max(value, x)}[op]
        if op == "*" and value == 0:
            return 0
        if not others:
            return value
        if value != neutral:
            others.append(value)
    return others[0] if len(others) == 1 else Op(op, tuple(others))


def add(*args: Expr) -> Expr:
    """The sum."""
    return _fold("+", 0, args)


def mul(*args: Expr) -> Expr:
    """The product."""
    return _fold("*", 1, args)


def least(*args: Expr) -> Expr:
    """The least; every named value is taken to be at least 1 where one argument is 1."""
    return 1 if 1 in args else _fold("min", None, args)


def most(*args: Expr) -> Expr:
    """The greatest."""
    return _fold("max", None, args)


def ceil_div(value: Expr, divisor: Expr) -> Expr:
    """value / divisor, rounded up."""
    if divisor == 1:
        return value
    if isinstance(value, int) and isinstance(divisor, int):
        return -(-value // divisor)
    return Op("ceil_div", (value, divisor))


def floor_div(value: Expr, divisor: Expr) -> Expr:
    """value / divisor, rounded down; value must not be negative."""
    if divisor == 1:
        return value
    if isinstance(value, int) and isinstance(divisor, int):
        return value // divisor
    return ceil_div(Op("-", (add(value, 1), divisor)), divisor)


def round_up(value: Expr, multiple: int) -> Expr:
    """The least multiple that is not below value."""
    return mul(ceil_div(value, multiple), multiple)
