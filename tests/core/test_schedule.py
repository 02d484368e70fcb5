"""Is a schedule a value: five groups, one key whatever the order, readable, refused when malformed?"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooftile.errors import FieldError

from search_space.family import BuildSpec, Parameter
from search_space.schedule import GROUPS, Schedule
from search_space.violation import Violation

PARAMETERS = (
    Parameter("mr", "tile", (4, 6, 8), "rows of the register tile"),
    Parameter("nr", "tile", (16, 24), "columns of the\n    register tile"),
    Parameter("pack_b", "movement", (False, True), "copy B into panels first"),
    Parameter("loop", "order", ("jpi", "ipj")),
)
VALUES = {"mr": 6, "nr": 16, "pack_b": True, "loop": "jpi"}


def schedule() -> Schedule:
    return Schedule.of("toy", PARAMETERS, VALUES)


def test_values_and_groups() -> None:
    s = schedule()
    assert s.values() == VALUES
    assert s.group("tile") == {"mr": 6, "nr": 16}
    assert s.group("roles") == {}
    assert (s.integer("mr"), s.flag("pack_b"), s.text("loop"), s["nr"]) == (6, True, "jpi", 16)
    assert "mr" in s
    assert "kc" not in s
    with pytest.raises(KeyError):
        s["kc"]
    with pytest.raises(TypeError):
        s.integer("pack_b")
    with pytest.raises(TypeError):
        s.flag("mr")
    with pytest.raises(TypeError):
        s.text("mr")


def test_json_has_all_five_groups_and_comes_back() -> None:
    s = schedule()
    assert list(s.to_json()) == ["schema", "family", *GROUPS]
    assert Schedule.from_json(json.loads(s.canonical())) == s
    assert hash(Schedule.from_json(s.to_json())) == hash(s)


@given(order=st.permutations(list(VALUES)))
def test_the_order_of_values_is_no_part_of_the_key(order: list[str]) -> None:
    again = Schedule.of("toy", tuple(reversed(PARAMETERS)), {n: VALUES[n] for n in order})
    assert again == schedule()
    assert again.key == schedule().key


def test_true_and_one_are_two_values() -> None:
    one, yes = (Schedule.make("toy", {"tile": {"x": v}}) for v in (1, True))
    assert one.key != yes.key
    assert one != yes
    assert len({one, yes}) == 2


def test_replace() -> None:
    s = schedule().replace(mr=8, loop="ipj")
    assert s.values() == VALUES | {"mr": 8, "loop": "ipj"}
    assert schedule().difference(s) == {"mr": (6, 8), "loop": ("jpi", "ipj")}
    with pytest.raises(FieldError) as caught:
        schedule().replace(nrr=8)
    assert caught.value.nearest == "nr"


def test_every_parameter_needs_a_value_and_nothing_else_has_one() -> None:
    with pytest.raises(FieldError, match=r"schedule\.order\.loop is missing"):
        Schedule.of("toy", PARAMETERS, {n: v for n, v in VALUES.items() if n != "loop"})
    with pytest.raises(FieldError, match=r"schedule\.packb: .*nearest: pack_b"):
        Schedule.of("toy", PARAMETERS, VALUES | {"packb": True})


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (None, "schedule"),
        ({"family": "toy"}, "schedule.schema"),
        ({"schema": 2, "family": "toy"}, "schedule.schema"),
        ({"schema": True, "family": "toy"}, "schedule.schema"),
        ({"schema": 1}, "schedule.family"),
        ({"schema": 1, "family": ""}, "schedule.family"),
        ({"schema": 1, "family": "toy", "tiles": {}}, "schedule.tiles"),
        ({"schema": 1, "family": "toy", "tile": []}, "schedule.tile"),
        ({"schema": 1, "family": "toy", "tile": {"mr": 1.5}}, "schedule.tile.mr"),
        ({"schema": 1, "family": "toy", "tile": {"mr": None}}, "schedule.tile.mr"),
        ({"schema": 1, "family": "toy", "tile": {"mr": 2**60}}, "schedule.tile.mr"),
        ({"schema": 1, "family": "toy", "tile": {"mr": "x" * 100}}, "schedule.tile.mr"),
        ({"schema": 1, "family": "toy", "tile": {"a b": 1}}, "schedule.tile.a b"),
        ({"schema": 1, "family": "toy", "tile": {"mr": 1}, "order": {"mr": 1}}, "schedule.order.mr"),
    ],
)
def test_malformed(obj: Any, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        Schedule.from_json(obj)
    assert caught.value.field == field


def test_one_line() -> None:
    assert schedule().one_line() == "toy  tile mr=6 nr=16 | movement pack_b=yes | order loop=jpi"
    turned = (PARAMETERS[1], PARAMETERS[0], *PARAMETERS[2:])
    assert schedule().one_line(turned) == "toy  tile nr=16 mr=6 | movement pack_b=yes | order loop=jpi"
    assert Schedule.make("toy", {}).one_line() == "toy"


def test_long() -> None:
    assert schedule().long(PARAMETERS).splitlines() == [
        "toy",
        "  tile",
        "    mr      6    rows of the register tile",
        "    nr      16   columns of the register tile",
        "  movement",
        "    pack_b  yes  copy B into panels first",
        "  layout: -",
        "  roles: -",
        "  order",
        "    loop    jpi",
    ]


def test_parameters_check_themselves() -> None:
    with pytest.raises(ValueError, match="group"):
        Parameter("x", "tiles", (1,))
    with pytest.raises(ValueError, match="choices"):
        Parameter("x", "tile", ())
    with pytest.raises(ValueError, match="choices"):
        Parameter("x", "tile", (1, 2, 1))
    assert Parameter("x", "tile", (0, False)).choices == (0, False)


def test_violations_show_their_numbers() -> None:
    v = Violation("registers", "the tile needs more registers than there are", {"needed": 18, "there": 16})
    assert str(v) == "registers: the tile needs more registers than there are (needed 18, there 16)"
    assert v.to_json()["numbers"] == {"needed": 18, "there": 16}
    assert len({v, Violation(v.rule, v.message, {"there": 16, "needed": 18})}) == 1
    with pytest.raises(TypeError):
        v.numbers["needed"] = 3  # type: ignore[index]


def test_build_specs_are_values() -> None:
    spec = BuildSpec("x86/gemm.c", "x86-64-v3", (("NR", "16"), ("MR", "6")), ("-O3",))
    assert spec == BuildSpec("x86/gemm.c", "x86-64-v3", (("MR", "6"), ("NR", "16")), ("-O3",))
    assert BuildSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.key == BuildSpec.from_json(spec.to_json()).key
