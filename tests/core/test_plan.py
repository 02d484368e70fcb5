"""Does a LaunchPlan mean the same everywhere, and is a malformed one refused before it reaches a launch?"""

import copy
import json
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rooftile.errors import PlanError
from rooftile.plan import (
    Arg,
    ConcreteArg,
    ConcreteFill,
    ConcreteLaunch,
    Fill,
    Launch,
    LaunchPlan,
    Op,
    SizeRange,
    ValidFor,
    Workspace,
    add,
    arg_offsets,
    ceil_div,
    evaluate,
    maximum,
    minimum,
    mul,
    pack_args,
    parse_expr,
    sub,
)

LOW, HIGH = -(2**63), 2**63 - 1

integers = st.integers(-(2**40), 2**40) | st.sampled_from([0, 1, -1, LOW, HIGH])
leaves = integers | st.sampled_from(["m", "n", "k"])


def operators(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.builds(
        lambda op, args: {"op": op, "args": args},
        st.sampled_from(["+", "*", "min", "max"]),
        st.lists(inner, min_size=2, max_size=3),
    )
    two = st.builds(
        lambda op, args: {"op": op, "args": args},
        st.sampled_from(["-", "ceil_div"]),
        st.lists(inner, min_size=2, max_size=2),
    )
    return many | two


expressions = st.recursive(leaves, operators, max_leaves=8)
sizes = st.fixed_dictionaries({n: st.integers(0, 2**31 - 1) for n in "mnk"})


class OverflowedError(Exception):
    """A step left 64 bits, or divided by what is not positive."""


def reference(expr: Any, names: Mapping[str, int]) -> int:
    """The same value worked out another way: exact fractions, checks on every step."""
    if isinstance(expr, str):
        return names[expr]
    if isinstance(expr, int):
        return expr
    values = [reference(a, names) for a in expr["args"]]
    total = values[0]
    for v in values[1:]:
        if expr["op"] == "ceil_div":
            if v <= 0:
                raise OverflowedError
            total = total // v + (total % v != 0)
        else:
            total = {
                "+": total + v,
                "-": total - v,
                "*": total * v,
                "min": min(total, v),
                "max": max(total, v),
            }[expr["op"]]
        if not LOW <= total <= HIGH:
            raise OverflowedError
    return total


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(expr=expressions, names=sizes)
def test_expressions_have_their_exact_value_or_are_refused(expr: Any, names: dict[str, int]) -> None:
    try:
        wanted = reference(expr, names)
    except OverflowedError:
        with pytest.raises(PlanError):
            evaluate(expr, names)
    else:
        assert evaluate(expr, names) == wanted


def test_the_helpers_write_the_json() -> None:
    expr = maximum(1, minimum(ceil_div("m", 64), mul("n", 2)), sub(add("k", 3), 1))
    assert evaluate(expr, {"m": 1000, "n": 5, "k": 0}) == 10
    plan_json = parse_expr(json.loads(json.dumps(plan(threads=expr).to_json()))["steps"][1]["threads"])
    assert plan_json == expr


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        (True, "not an integer"),
        (1.0, "not an integer"),
        (None, "not an integer"),
        ("M", "not a name"),
        ("m n", "not a name"),
        ("", "not a name"),
        ("__class__", "not a name"),
        ("m" * 100, "not a name"),
        (2**63, "64 bits"),
        ({"op": "/", "args": ["m", 2]}, "not one of"),
        ({"op": "+", "args": ["m"]}, "two or more"),
        ({"op": "-", "args": ["m", 1, 2]}, "takes two"),
        ({"op": "ceil_div", "args": ["m"]}, "takes two"),
        ({"op": "+", "args": "mn"}, "not a list"),
        ({"op": "+"}, "exactly op and args"),
        ({"op": "+", "args": [1, 2], "x": 1}, "exactly op and args"),
        ({"op": ["+"], "args": [1, 2]}, "not one of"),
        ([1, 2], "not an integer"),
    ],
)
def test_malformed_expressions(expr: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        parse_expr(expr)


def test_values_that_cannot_be() -> None:
    with pytest.raises(PlanError, match="needs q"):
        evaluate("q", {"m": 1})
    with pytest.raises(PlanError, match="ceil_div by 0"):
        evaluate(ceil_div("m", "n"), {"m": 1, "n": 0})
    with pytest.raises(PlanError, match="64 bits"):
        evaluate(mul("m", "m", "m"), {"m": 2**31 - 1})
    with pytest.raises(PlanError, match="64 bits"):
        evaluate("m", {"m": 2**63})
    with pytest.raises(PlanError, match="not an integer"):
        evaluate("m", {"m": 1.0})  # type: ignore[dict-item]


def test_depth_and_length_are_limited() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = {"op": "+", "args": [deep, 1]}
    with pytest.raises(PlanError, match="deeper"):
        parse_expr(deep)
    with pytest.raises(PlanError, match="longer"):
        parse_expr({"op": "+", "args": [1] * 2000})


# -- plans --------------------------------------------------------------------------------------------------


def plan(threads: Any = "threads", **changes: Any) -> LaunchPlan:
    fields: dict[str, Any] = {
        "family": "gemm_x86",
        "arch": "x86-64-v3",
        "kind": "x86",
        "entries": ("run",),
        "sizes": ("m", "n", "k"),
        "workspace": Workspace(mul("m", "n", 4), "zero"),
        "steps": (
            Fill(0, mul("m", 4), 255),
            Launch(
                "run",
                (Arg.ptr("a"), Arg.i64("m"), Arg("tiles", "i32", value=ceil_div("n", 16)), Arg.f32("alpha")),
                threads=threads,
            ),
        ),
        "valid_for": ValidFor({"m": SizeRange(1, 64, 2)}, {"a": 4}),
    }
    return LaunchPlan(**(fields | changes))


def test_round_trip_and_golden_json() -> None:
    p = plan()
    assert LaunchPlan.from_json(json.loads(p.canonical())) == p
    assert p.canonical() == (
        '{"arch":"x86-64-v3","deterministic":true,"entries":["run"],"family":"gemm_x86","kind":"x86","schema":1,'
        '"sizes":["m","n","k"],"steps":[{"bytes":{"args":["m",4],"op":"*"},"offset":0,"op":"fill",'
        '"target":"workspace","value":255},{"args":[{"buffer":"a","name":"a","type":"ptr"},{"name":"m",'
        '"type":"i64","value":"m"},{"name":"tiles","type":"i32","value":{"args":["n",16],"op":"ceil_div"}},'
        '{"name":"alpha","scalar":"alpha","type":"f32"}],"entry":"run","op":"launch","threads":"threads"}],'
        '"valid_for":{"align":{"a":4},"sizes":{"m":{"max":64,"min":1,"multiple_of":2}}},'
        '"workspace":{"bytes":{"args":["m","n",4],"op":"*"},"init":"zero"}}'
    )
    assert hash(p) == hash(plan())
    assert plan(deterministic=False).key != p.key


def test_concrete_numbers() -> None:
    done = plan().concrete({"m": 4, "n": 33, "k": 7, "threads": 2})
    assert done.workspace_bytes == 4 * 33 * 4
    assert done.workspace_zeroed
    assert done.steps == (
        ConcreteFill(0, 16, 255),
        ConcreteLaunch(
            "run",
            (
                ConcreteArg("a", "ptr", buffer="a"),
                ConcreteArg("m", "i64", value=4),
                ConcreteArg("tiles", "i32", value=3),
                ConcreteArg("alpha", "f32", scalar="alpha"),
            ),
            threads=2,
        ),
    )


def test_cuda_plans() -> None:
    p = plan(
        kind="cuda",
        arch="sm_90a",
        steps=(
            Launch(
                "run",
                (),
                grid=(mul(2, ceil_div("m", 128)), 1, 1),
                block=(384, 1, 1),
                cluster=(2, 1, 1),
                smem="k",
            ),
        ),
    )
    assert LaunchPlan.from_json(json.loads(p.canonical())) == p
    names = {"m": 200, "n": 1, "k": 1024}
    (step,) = p.concrete(names).steps
    assert step == ConcreteLaunch("run", (), 0, (4, 1, 1), (384, 1, 1), (2, 1, 1), 1024)
    with pytest.raises(PlanError, match="cannot be launched"):
        p.concrete(names | {"m": 0})  # a grid of 0 would run as 1


@pytest.mark.parametrize(
    ("changes", "names", "says"),
    [
        ({"steps": (Fill(8, "m"),), "workspace": Workspace(8)}, {"m": 1}, "leaves the workspace"),
        ({"steps": (Fill(sub(0, "m"), 1),)}, {"m": 1}, "leaves the workspace"),
        ({"workspace": Workspace(sub(0, "m"))}, {"m": 1}, "workspace of -1"),
        ({"threads": sub("m", 1)}, {"m": 1}, "0 threads"),
        ({}, {"n": 2**40}, "does not fit in i32"),
        ({}, {"n": None}, "needs n"),
    ],
)
def test_numbers_that_cannot_be_run(changes: dict[str, Any], names: dict[str, Any], says: str) -> None:
    all_names = {"m": 4, "n": 33, "k": 7, "threads": 2} | names
    with pytest.raises(PlanError, match=says):
        plan(**changes).concrete({n: v for n, v in all_names.items() if v is not None})


def test_check_says_every_reason() -> None:
    p = plan()
    assert p.check({"m": 4}, {"a": 64}) == []
    assert p.check({"m": 4}) == []
    assert p.check({"m": 66}, {"a": 2}) == ["m = 66 is outside 1 to 64", "a is aligned to 2 bytes, not 4"]
    assert p.check({"m": 3}) == ["m = 3 is no multiple of 2"]
    assert p.check({}) == ["m is not given"]


def edited(path: list[Any], value: Any) -> dict[str, Any]:
    obj: Any = copy.deepcopy(plan().to_json())
    at = obj
    for step in path[:-1]:
        at = at[step]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return obj  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["schema"], 2, "schema"),
        (["schema"], True, "schema"),
        (["schema"], ..., "schema is missing"),
        (["family"], "Gemm X86", "family"),
        (["kind"], "rocm", "kind"),
        (["kind"], "cuda", "cannot launch like that"),
        (["entries"], ["go"], "not among the plan's entries"),
        (["entries"], "run", "not a list"),
        (["sizes"], ["m", "k"], "n is not among the plan's sizes"),
        (["sizes"], [1], "not a name"),
        (["steps"], [], "0 of them"),
        (["steps"], {}, "not a list"),
        (["steps", 0, "op"], "memset", "not fill or launch"),
        (["steps", 0, "target"], "a", "not workspace"),
        (["steps", 0, "value"], 256, "not a byte"),
        (["steps", 0, "offset"], 1.5, "not an integer"),
        (["steps", 0, "size"], 1, "'size' is unknown"),
        (["steps", 1, "threads"], ..., "needs either"),
        (["steps", 1, "grid"], [1, 1, 1], "needs either"),
        (["steps", 1, "smem"], 0, "belong to a grid"),
        (["steps", 1, "args"], None, "not a list"),
        (["steps", 1, "args", 0, "buffer"], "secret", "not one of"),
        (["steps", 1, "args", 0, "buffer"], ..., "takes buffer"),
        (["steps", 1, "args", 0, "value"], 1, "takes buffer"),
        (["steps", 1, "args", 1, "type"], "i8", "not one of"),
        (["steps", 1, "args", 1, "name"], "a", "appears twice"),
        (["steps", 1, "args", 3, "scalar"], "gamma", "not one of"),
        (["deterministic"], 1, "not true or false"),
        (["workspace", "init"], "random", "not none or zero"),
        (["workspace", "bytes"], "q", "q is not among"),
        (["valid_for", "sizes", "m", "min"], -1, "whole number"),
        (["valid_for", "sizes", "m", "min"], 65, "over max"),
        (["valid_for", "sizes", "m", "multiple_of"], 0, "whole number"),
        (["valid_for", "sizes", "q"], {}, "q is not among"),
        (["valid_for", "align", "a"], 3, "power of two"),
        (["valid_for", "align", "z"], 4, "no buffer"),
        (["extra"], 1, "'extra' is unknown"),
    ],
)
def test_malformed_plans_are_refused(path: list[Any], value: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        LaunchPlan.from_json(edited(path, value))


@pytest.mark.parametrize("obj", [None, [], "plan", 1])
def test_what_is_no_plan(obj: object) -> None:
    with pytest.raises(PlanError, match="not an object"):
        LaunchPlan.from_json(obj)


# -- packing ------------------------------------------------------------------------------------------------


@given(types=st.lists(st.sampled_from(["ptr", "i32", "u32", "i64", "f32", "f64"]), min_size=1, max_size=12))
def test_offsets_are_those_of_a_c_struct(types: list[str]) -> None:
    codes = {"ptr": "P", "i32": "i", "u32": "I", "i64": "q", "f32": "f", "f64": "d"}
    offsets, size = arg_offsets(types)
    native = "".join(codes[t] for t in types)  # "@": the C compiler's own alignment
    for i, t in enumerate(types):
        assert offsets[i] + struct.calcsize(codes[t]) == struct.calcsize("@" + native[: i + 1])
    # A struct's size is a multiple of its widest member.
    widest = max(struct.calcsize(codes[t]) for t in types)
    assert size == struct.calcsize("@" + native) + -struct.calcsize("@" + native) % widest


def test_packed_bytes() -> None:
    args = [
        ConcreteArg("a", "ptr", buffer="a"),
        ConcreteArg("alpha", "f32", scalar="alpha"),
        ConcreteArg("m", "i64", value=-5),
        ConcreteArg("bias", "ptr", buffer="bias"),
        ConcreteArg("tail", "i32", value=7),
    ]
    data = pack_args(args, {"a": 2**63 + 64}, {"alpha": 1.5})
    assert data == struct.pack("<QfxxxxqQixxxx", 2**63 + 64, 1.5, -5, 0, 7)
    with pytest.raises(PlanError, match="alpha is not given"):
        pack_args(args, {}, {})
    with pytest.raises(PlanError, match="does not fit in ptr"):
        pack_args(args, {"a": -1}, {"alpha": 1.0})


def test_operators_check_their_own_shape() -> None:
    with pytest.raises(PlanError):
        Op("%", (1, 2))
    with pytest.raises(PlanError):
        Op("+", (1,))
