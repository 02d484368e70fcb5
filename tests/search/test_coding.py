"""Do schedules become numbers and come back, also when the space has changed since?"""

from __future__ import annotations

from service.search.coding import Coding

LIVE = {"mr": (2, 4, 8), "way": ("rows", "columns"), "pack": (False, True), "fixed": (1,)}


def test_what_cannot_vary_is_no_axis() -> None:
    assert [axis.name for axis in Coding.of(LIVE, []).axes] == ["mr", "way", "pack"]


def test_codes_come_back_as_the_values() -> None:
    coding = Coding.of(LIVE, [])
    values = {"mr": 8, "way": "columns", "pack": True, "fixed": 1}
    codes = coding.encode(values)
    assert codes is not None
    assert coding.decode(codes) == {"mr": 8, "way": "columns", "pack": True}


def test_true_is_not_one() -> None:
    coding = Coding.of({"x": (0, 1, True)}, [])
    assert coding.encode({"x": True}) != coding.encode({"x": 1})


def test_numbers_are_ordered_and_words_are_not() -> None:
    coding = Coding.of(LIVE, [])
    assert [axis.ordered for axis in coding.axes] == [True, False, False]
    base, one, two = (0, 0, 0), (1, 0, 0), (2, 0, 0)
    assert coding.distance(base, one) < coding.distance(base, two)
    assert coding.distance(base, (0, 1, 0)) == 1.0


def test_values_of_old_rows_widen_the_axis_in_their_place() -> None:
    coding = Coding.of(LIVE, [{"mr": 6, "way": "spiral", "gone": 3}])
    mr, way, _ = coding.axes
    assert mr.choices == (2, 4, 6, 8)
    assert mr.live == frozenset({0, 1, 3})
    assert way.choices == ("rows", "columns", "spiral")
    assert coding.encode({"mr": 6, "way": "spiral", "pack": False}) is not None


def test_a_row_without_a_parameter_has_no_code() -> None:
    assert Coding.of(LIVE, []).encode({"mr": 2, "way": "rows"}) is None
