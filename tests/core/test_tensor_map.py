"""Are tensor maps the same everywhere, and is what the driver refuses refused first, with the number?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rooftile.errors import PlanError
from rooftile.plan import (
    NO_TENSOR,
    Arg,
    ConcreteLaunch,
    ConcreteTensorMap,
    Launch,
    LaunchPlan,
    TensorMap,
    arg_offsets,
    maximum,
    mul,
    pack_args,
)

MAP = TensorMap(
    "a", "bf16", (maximum("k", 1), "m", "batch"), (mul("ld_a", 2), mul("stride_a", 2)), (64, 128, 1),
    swizzle=128, l2_promotion=256,
)  # fmt: skip
NAMES = {"k": 40, "m": 3, "batch": 1, "ld_a": 48, "stride_a": 144}


def _plan(**changes: Any) -> LaunchPlan:
    launch = Launch(
        "gemm",
        (Arg.tensor_map("map_a", MAP), Arg.i64("m"), Arg.ptr("out")),
        grid=(1, 1, 1),
        block=(128, 1, 1),
    )
    fields: dict[str, Any] = {
        "family": "gemm_toy", "arch": "sm_90a", "kind": "cuda", "entries": ("gemm",), "sizes": tuple(NAMES),
        "steps": (launch,),
    }  # fmt: skip
    return LaunchPlan(**(fields | changes))


def test_round_trip_and_golden_json() -> None:
    plan = _plan()
    assert LaunchPlan.from_json(plan.to_json()) == plan
    assert MAP.to_json() == {
        "buffer": "a", "dtype": "bf16", "dims": [{"op": "max", "args": ["k", 1]}, "m", "batch"],
        "strides": [{"op": "*", "args": ["ld_a", 2]}, {"op": "*", "args": ["stride_a", 2]}],
        "box": [64, 128, 1], "swizzle": 128, "l2_promotion": 256, "fill": "zero", "offset": 0,
    }  # fmt: skip
    assert MAP.box_bytes == 64 * 128 * 2


def test_numbers_for_sizes() -> None:
    step = _plan().concrete(NAMES).steps[0]
    assert isinstance(step, ConcreteLaunch)
    assert step.args[0].tensor == ConcreteTensorMap(
        "a", "bf16", (40, 3, 1), (96, 288), (64, 128, 1), 128, 256, "zero", 0
    )
    empty = _plan().concrete(NAMES | {"k": 0}).steps[0]
    assert isinstance(empty, ConcreteLaunch)
    assert empty.args[0].tensor is not None
    assert empty.args[0].tensor.dims[0] == 1


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"m": 0}, "dimension of 0 is not 1 to 2"),
        ({"m": 2**32 + 1}, "dimension of 4294967297"),
        ({"ld_a": 47}, "stride of 94 bytes is no multiple of 16"),
        ({"stride_a": 2**39}, "stride of 1099511627776 bytes"),
        ({"ld_a": -8}, "stride of -16 bytes"),
    ],
)
def test_sizes_that_the_driver_refuses(names: dict[str, int], says: str) -> None:
    with pytest.raises(PlanError, match=f"argument map_a: .*{says}"):
        _plan().concrete(NAMES | names)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"box": (64, 257, 1)}, "257 is not a whole number, 1 to 256"),
        ({"box": (64, True, 1)}, "True is not a whole number"),
        ({"box": (4, 8, 1), "swizzle": 0}, "rows of 8 bytes are no multiple of 16"),
        ({"box": (128, 8, 1)}, "rows of 256 bytes are over the swizzle of 128"),
        ({"box": (64, 8)}, "3 dims take 2 strides and 3 sizes"),
        ({"dims": (), "strides": (), "box": ()}, "0 dimensions"),
        ({"dims": ("k",) * 6, "strides": ("k",) * 5, "box": (64,) * 6}, "6 dimensions, not 1 to 5"),
        ({"dtype": "fp8"}, "'fp8' is not one of f64 f32"),
        ({"swizzle": 16}, "16 is not one of 0 32 64 128"),
        ({"swizzle": False}, "False is not one of"),
        ({"l2_promotion": 512}, "512 is not one of"),
        ({"fill": "one"}, "'one' is not one of zero nan"),
        ({"fill": "nan", "dtype": "u8"}, "nan is for"),
        ({"dims": "kmb"}, "not a list"),
    ],
)
def test_tensor_maps_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        replace(MAP, **changes)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("buffer", "x", "buffer 'x' is not one of"),
        ("more", 1, "exactly the fields"),
        ("dims", ["k", "q", "batch"], "q is not among the plan's sizes"),
        ("offset", "q", "q is not among the plan's sizes"),
    ],
)
def test_json_that_is_wrong(path: str, value: Any, says: str) -> None:
    obj = _plan().to_json()
    obj["steps"][0]["args"][0]["tensor"][path] = value
    with pytest.raises(PlanError, match=says):
        LaunchPlan.from_json(obj)


def test_an_argument_takes_one_thing() -> None:
    with pytest.raises(PlanError, match="type tensor_map takes tensor, not nothing"):
        Arg("map", "tensor_map")
    with pytest.raises(PlanError, match="type ptr takes buffer, not tensor"):
        Arg("map", "ptr", tensor=MAP)
    launch = Launch("gemm", (Arg.tensor_map("map_a", MAP),), threads=1)
    with pytest.raises(PlanError, match="a plan of kind x86 cannot launch like that"):
        _plan(kind="x86", steps=(launch,))


def test_it_lies_in_the_arguments_aligned_to_64_bytes() -> None:
    assert arg_offsets(["i64", "tensor_map", "ptr", "tensor_map"]) == ([0, 64, 192, 256], 384)
    step = _plan().concrete(NAMES).steps[0]
    assert isinstance(step, ConcreteLaunch)
    seen = []

    def encode(tensor: ConcreteTensorMap, address: int) -> bytes:
        seen.append((tensor.buffer, address))
        return bytes(range(128))

    data = pack_args(step.args, {"a": 0x1000, "out": 5}, {}, encode)
    assert seen == [("a", 0x1000)]
    assert data[:128] == bytes(range(128))
    assert data[128:136] == (3).to_bytes(8, "little")
    for pointers, used, says in (
        ({"a": 0x1008}, encode, "0x1008 is not aligned to 16 bytes"),
        ({"a": 0x1000}, None, "not for this kind of launch"),
        ({"a": 0x1000}, lambda *_: b"", "a tensor map of 0 bytes, not 128"),
    ):
        with pytest.raises(PlanError, match=f"argument map_a: .*{says}"):
            pack_args(step.args, pointers, {}, used)
    # Like the pointer of a buffer that is not there.
    assert pack_args(step.args, {}, {}, encode)[:128] == NO_TENSOR == bytes(128)
