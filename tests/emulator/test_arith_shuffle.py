"""Do lanes exchange what the PTX ISA says? Its pseudo-code, lane by lane, is the reference."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from emulator.arith import shuffle

RNG = np.random.default_rng(19)
LANES = range(32)


def words(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
    return RNG.integers(0, 1 << 32, shape, dtype=np.uint32)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffle(mode: str) -> None:
    a = words(3, 32)
    for b, width, clamp in itertools.product((0, 1, 5, 16, 31, 33), (32, 16, 8, 4), (0, 31, 5)):
        c = (32 - width) << 8 | clamp
        got, inside, undefined = shuffle.shfl(mode, a, np.array([[b]], np.uint32), np.array([[c]], np.uint32))
        assert got.shape == inside.shape == undefined.shape == (3, 32)
        assert not undefined.any()
        # The same once more with operands that could differ between lanes.
        apart = shuffle.shfl(mode, a, np.full((3, 32), b, np.uint32), np.full((3, 32), c, np.uint32))
        assert all((x == y).all() for x, y in zip(apart, (got, inside, undefined), strict=True))
        for lane in LANES:
            bval, cval, segmask = b & 31, c & 31, c >> 8 & 31
            most = (lane & segmask) | (cval & ~segmask)
            least = lane & segmask
            match mode:
                case "up":
                    j = lane - bval
                    ok = j >= most
                case "down":
                    j = lane + bval
                    ok = j <= most
                case "bfly":
                    j = lane ^ bval
                    ok = j <= most
                case _:
                    j = least | (bval & ~segmask)
                    ok = j <= most
            assert inside[:, lane].tolist() == [ok] * 3
            assert (got[:, lane] == a[:, j if ok else lane]).all()


def test_a_shuffle_from_lanes_that_are_not_there_is_undefined() -> None:
    a = words(2, 32)
    active = np.ones((2, 32), bool)
    active[0, 5] = False
    full = np.uint32(0x1F)
    for one in (np.uint32(1), np.full((2, 32), 1, np.uint32)):
        _, _, undefined = shuffle.shfl("bfly", a, one, full, active=active)
        assert np.argwhere(undefined).tolist() == [[0, 4]]
    for source in (np.uint32(20), np.full((2, 32), 20, np.uint32)):
        _, _, undefined = shuffle.shfl("idx", a, source, full, np.uint32(0xFFFF))
        assert undefined.all()
    _, inside, undefined = shuffle.shfl("down", a, np.uint32(8), np.uint32(0x181F), np.uint32(0x0000FFFF))
    assert not undefined[:, :16].any()
    assert not inside.any()


def test_what_all_lanes_share_may_be_one_number() -> None:
    one = np.array([[7]], np.uint32)
    got, inside, undefined = shuffle.shfl(
        "bfly", one, np.uint32(3), np.uint32(31), active=np.ones((2, 32), bool)
    )
    assert got.tolist() == [[7] * 32] * 2
    assert inside.all()
    assert not undefined.any()


def test_each_lane_may_name_its_own_source() -> None:
    a = words(2, 32)
    source = np.stack([RNG.permutation(32), RNG.permutation(32)]).astype(np.uint32)
    got, _, _ = shuffle.shfl("idx", a, source, np.uint32(31))
    assert (got == np.take_along_axis(a, source.astype(int), 1)).all()


def test_votes() -> None:
    a = RNG.random((8, 32)) < 0.5
    a[0], a[1] = True, False
    mask, active = words(8, 1), RNG.random((8, 32)) < 0.8
    mask[2], active[2] = 0xFFFFFFFF, True
    heard = [[bool(int(mask[w, 0]) >> i & 1 and active[w, i]) for i in LANES] for w in range(8)]
    for w in range(8):
        votes = [bool(a[w, i]) for i in LANES if heard[w][i]]
        ballot = sum(1 << i for i in LANES if heard[w][i] and a[w, i])
        for mode, want in (
            ("all", all(votes)),
            ("any", any(votes)),
            ("uni", len(set(votes)) <= 1),
            ("ballot", ballot),
        ):
            got = shuffle.vote(mode, a, mask, active)
            assert got.shape == (8, 32)
            assert (got[w] == want).all(), (mode, w)
    assert shuffle.vote("ballot", np.ones((1, 1), bool)).tolist() == [[0xFFFFFFFF] * 32]
    with pytest.raises(ValueError, match="unknown mode"):
        shuffle.vote("none", a)


def test_halves_of_a_warp_vote_apart() -> None:
    mask = np.where(np.arange(32) < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)[None]
    a = (np.arange(32) < 16)[None]
    assert shuffle.vote("all", a, mask)[0].tolist() == [True] * 16 + [False] * 16
    assert shuffle.vote("ballot", a, mask)[0].tolist() == [0xFFFF] * 16 + [0] * 16


@pytest.mark.parametrize("type_", ["b32", "b64"])
def test_match(type_: str) -> None:
    kind = np.uint32 if type_ == "b32" else np.uint64
    a = (RNG.integers(0, 4, (4, 32)).astype(kind) << kind(30 if type_ == "b32" else 60)) + kind(7)
    a[1] = 5
    active = np.ones((4, 32), bool)
    active[2, ::3] = False
    mask = np.array([[0xFFFFFFFF], [0xFFFFFFFF], [0xFFFFFFFF], [0x00FF0F01]], np.uint32)
    got, _ = shuffle.match("any", type_, a, mask, active)
    every, agree = shuffle.match("all", type_, a, mask, active)
    for w in range(4):
        heard = [i for i in LANES if int(mask[w, 0]) >> i & 1 and active[w, i]]
        whole = sum(1 << i for i in heard)
        same = len({int(a[w, i]) for i in heard}) == 1
        for lane in heard:
            assert got[w, lane] == sum(1 << i for i in heard if a[w, i] == a[w, lane])
            assert every[w, lane] == (whole if same else 0)
            assert agree[w, lane] == same


def test_reductions() -> None:
    a = words(5, 32)
    a[0] = 0x80000000
    active = RNG.random((5, 32)) < 0.7
    active[:, 3] = True
    mask = words(5, 1) | np.uint32(8)
    for w in range(5):
        heard = [int(a[w, i]) for i in LANES if int(mask[w, 0]) >> i & 1 and active[w, i]]
        signed = [v - (1 << 32) if v >> 31 else v for v in heard]
        bits = {"and": 0xFFFFFFFF, "or": 0, "xor": 0}
        for v in heard:
            bits = {"and": bits["and"] & v, "or": bits["or"] | v, "xor": bits["xor"] ^ v}
        for operation, type_, want in (
            ("add", "u32", sum(heard)), ("add", "s32", sum(signed)), ("min", "u32", min(heard)),
            ("max", "u32", max(heard)), ("min", "s32", min(signed)), ("max", "s32", max(signed)),
            ("and", "b32", bits["and"]), ("or", "b32", bits["or"]), ("xor", "b32", bits["xor"]),
        ):  # fmt: skip
            got = shuffle.redux(operation, type_, a, mask, active)
            assert (got[w] == want % (1 << 32)).all(), (operation, type_)


def test_reductions_of_floats() -> None:
    def bits(*numbers: float) -> np.ndarray:  # type: ignore[type-arg]
        return np.array([numbers + (numbers[0],) * (32 - len(numbers))], np.float32).view(np.uint32)

    def one(operation: str, *numbers: float, absolute: bool = False, nan: bool = False) -> int:
        return int(shuffle.redux(operation, "f32", bits(*numbers), absolute=absolute, nan=nan)[0, 0])

    def code(number: float) -> int:
        return int(np.float32(number).view(np.uint32))

    assert one("min", 1.0, -2.0, 3.0) == code(-2.0)
    assert one("max", 1.0, -2.0, 3.0) == code(3.0)
    assert one("max", -1.0, -2.0, -math.inf) == code(-1.0)
    assert one("min", 0.0, -0.0) == code(-0.0)
    assert one("max", -0.0, 0.0) == code(0.0)
    assert one("max", 1.0, -5.0, 3.0, absolute=True) == code(5.0)
    assert one("min", math.nan, 4.0, 5.0) == code(4.0)
    assert one("min", 4.0, math.nan, nan=True) == 0x7FFFFFFF
    assert one("max", math.nan) == 0x7FFFFFFF
    odd = np.full((1, 32), 0x7F800001, np.uint32)  # a NaN one above infinity
    odd[0, 1] = code(2.0)
    assert int(shuffle.redux("max", "f32", odd)[0, 0]) == code(2.0)
    with pytest.raises(ValueError, match="no add of f32"):
        one("add", 1.0)


def test_active_lanes_and_leaders() -> None:
    active = RNG.random((6, 32)) < 0.3
    active[:, 30] = True
    got = shuffle.activemask(active)
    leader, is_leader = shuffle.elect(np.uint32(0xFFFFFFF0), active)
    for w in range(6):
        assert (got[w] == sum(1 << i for i in LANES if active[w, i])).all()
        first = min(i for i in LANES if active[w, i] and i >= 4)
        assert (leader[w] == first).all()
        assert is_leader[w].tolist() == [i == first for i in LANES]
