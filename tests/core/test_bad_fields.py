"""Is every bad field of a problem refused with its name, its value, what is allowed, and the nearest name?"""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rooftile.errors import FieldError
from rooftile.problem import Gemm, parse_problem

GEMM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}
ATTENTION: dict[str, Any] = {"op": "attention", "heads_q": 32, "seq_q": 8, "head_dim": 64, "dtype": "bf16"}
MX = {"dtype": "ue8m0", "block": 32}
NV = {"dtype": "ue4m3", "block": 16}
ROW = {"dtype": "f32", "block": "row"}


def refused(obj: object) -> FieldError:
    with pytest.raises(FieldError) as caught:
        parse_problem(obj)
    error = caught.value
    text = json.dumps(error.to_json(), allow_nan=False)  # always strict JSON
    assert len(text) < 1000
    assert error.field in str(error)
    assert str(error).isascii()
    return error


@pytest.mark.parametrize("size", ["m", "n", "k", "batch"])
@pytest.mark.parametrize(
    "value",
    [-1, 2**31, 10**400, 1.5, 8.0, math.nan, math.inf, -math.inf, "8", "", True, False, None, [], {}, [8]],
)
def test_sizes_are_whole_numbers_in_range(size: str, value: object) -> None:
    error = refused(GEMM | {size: value})
    assert error.field == size
    assert error.value is value
    assert "whole number" in error.allowed
    assert "2147483647" in error.allowed


def test_a_float_or_text_that_means_a_whole_number_gets_it_as_nearest() -> None:
    assert refused(GEMM | {"m": 8.0}).nearest == 8
    assert refused(GEMM | {"m": "8"}).nearest == 8
    assert refused(GEMM | {"m": -3}).nearest == 0
    assert refused(GEMM | {"m": 2**40}).nearest == 2**31 - 1
    assert refused(GEMM | {"m": 1.5}).nearest is None
    assert refused(GEMM | {"batch": 0}).nearest == 1


def test_nan_as_json_spells_it() -> None:
    error = refused(json.loads('{"op": "gemm", "m": NaN, "n": 4, "k": 4, "dtype": "f32"}'))
    assert error.field == "m"
    assert error.to_json()["value"] == "nan"


@pytest.mark.parametrize(
    ("spelling", "meant"),
    [
        ("fp16", "f16"),
        ("float16", "f16"),
        ("half", "f16"),
        ("torch.float16", "f16"),
        ("F16", "f16"),
        ("float32", "f32"),
        ("fp32", "f32"),
        ("float", "f32"),
        ("numpy.float32", "f32"),
        ("fp64", "f64"),
        ("double", "f64"),
        ("bfloat16", "bf16"),
        ("BF16", "bf16"),
        ("fp8_e4m3", "e4m3"),
        ("float8_e4m3fn", "e4m3"),
        ("fp8", "e4m3"),
        ("fp8_e5m2", "e5m2"),
        ("nvfp4", "e2m1"),
        ("mxfp4", "e2m1"),
        ("int8", "s8"),
        ("i8", "s8"),
        ("uint8", "u8"),
        ("tensorfloat32", "tf32"),
        ("f166", "f16"),
    ],
)
def test_other_spellings_are_refused_with_the_nearest_name(spelling: str, meant: str) -> None:
    for obj, field in [
        (GEMM | {"dtype": spelling}, "dtype"),
        (GEMM | {"dtype": {"a": spelling}}, "dtype.a"),
    ]:
        error = refused(obj)
        assert (error.field, error.value, error.nearest) == (field, spelling, meant)
        assert meant in error.allowed


@pytest.mark.parametrize("value", [None, 32, 1.0, True, ["f32"], "", "zzz", "f32 ", "x" * 10**6, "\ud800"])
def test_what_is_no_dtype_at_all(value: object) -> None:
    assert refused(GEMM | {"dtype": value}).field == "dtype"
    assert refused(ATTENTION | {"dtype": {"q": value}}).field == "dtype.q"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dtype": {}}, "dtype.a"),
        ({"dtype": {"b": "f32"}}, "dtype.a"),
        ({"dtype": {"a": "f32", "b": "f16"}}, "dtype.b"),
        ({"dtype": {"a": "e4m3", "b": "bf16"}}, "dtype.b"),
        ({"dtype": {"a": "s8", "b": "e4m3"}}, "dtype.b"),
        ({"dtype": {"a": "f16", "b": None}}, "dtype.b"),
        ({"dtype": {"a": "f32", "acc": "f16"}}, "dtype.acc"),
        ({"dtype": {"a": "bf16", "acc": "f16"}}, "dtype.acc"),
        ({"dtype": {"a": "s8", "acc": "f32"}}, "dtype.acc"),
        ({"dtype": {"a": "f64", "acc": "f32"}}, "dtype.acc"),
        ({"dtype": {"a": "f64", "c": "f32"}}, "dtype.c"),
        ({"dtype": {"a": "f32", "c": "s32"}}, "dtype.c"),
        ({"dtype": {"a": "bf16", "c": "tf32"}}, "dtype.c"),
        ({"dtype": {"a": "e2m1", "c": "e2m1"}}, "dtype.c"),
        ({"dtype": {"a": "s8", "c": "s8"}}, "dtype.c"),
        ({"dtype": "s32"}, "dtype"),
        ({"dtype": {"a": "f32", "d": "f32"}}, "dtype.d"),
        ({"layout": "row"}, "layout"),
        ({"layout": None}, "layout"),
        ({"layout": {"a": "kn"}}, "layout.a"),
        ({"layout": {"b": "col"}}, "layout.b"),
        ({"layout": {"b": None}}, "layout.b"),
        ({"layout": {"c": "MN"}}, "layout.c"),
        ({"layout": {"x": "mn"}}, "layout.x"),
        ({"ld": {"a": 63}}, "ld.a"),
        ({"ld": {"b": 0}}, "ld.b"),
        ({"ld": {"c": 64.0}}, "ld.c"),
        ({"ld": {"a": 2**31}}, "ld.a"),
        ({"ld": {"a": True}}, "ld.a"),
        ({"ld": {"lda": 64}}, "ld.lda"),
        ({"ld": [64]}, "ld"),
        ({"layout": {"a": "km"}, "ld": {"a": 7}}, "ld.a"),
        ({"align": {"a": 3}}, "align.a"),
        ({"align": {"a": 2}}, "align.a"),
        ({"align": {"a": 0}}, "align.a"),
        ({"align": {"b": -16}}, "align.b"),
        ({"align": {"b": 8192}}, "align.b"),
        ({"align": {"c": 16.0}}, "align.c"),
        ({"align": {"c": None}}, "align.c"),
        ({"alpha": 1.0}, "alpha"),
        ({"alpha": "two"}, "alpha"),
        ({"beta": 0}, "beta"),
        ({"beta": None}, "beta"),
        ({"epilogue": "relu"}, "epilogue"),
        ({"epilogue": {"bias": True}}, "epilogue.bias"),
        ({"epilogue": {"bias": "m"}}, "epilogue.bias"),
        ({"epilogue": {"activation": "tanh"}}, "epilogue.activation"),
        ({"epilogue": {"residual": 1}}, "epilogue.residual"),
        ({"epilogue": {"residual": None}}, "epilogue.residual"),
        ({"epilogue": {"scale": 1}}, "epilogue.scale"),
        ({"dtype": "s8", "epilogue": {"activation": "gelu"}}, "epilogue.activation"),
        ({"schema": 2}, "schema"),
        ({"schema": "1"}, "schema"),
        ({"schema": True}, "schema"),
        ({"schema": 1.0}, "schema"),
        ({"transpose": True}, "transpose"),
        ({"M": 8}, "M"),
    ],
)
def test_gemm_fields(changes: dict[str, Any], field: str) -> None:
    assert refused(GEMM | changes).field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scale": {"a": ROW}}, "scale.a"),
        ({"dtype": "bf16", "scale": {"b": ROW}}, "scale.b"),
        ({"dtype": "e4m3", "scale": ROW}, "scale.dtype"),
        ({"dtype": "e4m3", "scale": {"a": "f32"}}, "scale.a"),
        ({"dtype": "e4m3", "scale": {"a": {"block": 32}}}, "scale.a.dtype"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "f32"}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "f32", "block": None}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "f16", "block": "row"}}}, "scale.a.dtype"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "f32", "block": 32}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "f32", "block": True}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "ue8m0", "block": "32"}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "ue8m0", "block": 32.0}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "ue8m0", "block": 16}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": {"dtype": "ue8m0", "block": "row"}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": NV, "b": NV}}, "scale.a.dtype"),
        ({"dtype": "e2m1", "scale": {"a": {"dtype": "ue4m3", "block": 32}}}, "scale.a.block"),
        ({"dtype": "e4m3", "scale": {"a": MX}}, "scale.b"),
        ({"dtype": "e4m3", "scale": {"b": MX}}, "scale.a"),
        ({"dtype": "e4m3", "scale": {"a": MX, "b": {"dtype": "ue8m0", "block": "1x128"}}}, "scale.b"),
        ({"dtype": "e4m3", "scale": {"a": MX, "b": ROW}}, "scale.b.dtype"),
        ({"dtype": "e2m1", "scale": {"a": NV, "b": MX}}, "scale.b.dtype"),
        (
            {"dtype": {"a": "s8", "c": "bf16"}, "scale": {"a": {"dtype": "f32", "block": "1x128"}}},
            "scale.a.block",
        ),
        ({"dtype": {"a": "s8", "c": "bf16"}, "scale": {"a": MX, "b": MX}}, "scale.a.dtype"),
        ({"dtype": "s8", "scale": {"a": ROW}}, "scale.a"),
        ({"dtype": "e4m3", "scale": {"c": ROW}}, "scale.c"),
        ({"dtype": "e2m1", "n": 63}, "n"),
        ({"dtype": "e2m1", "k": 63}, "k"),
        ({"dtype": "e2m1", "ld": {"a": 65}}, "ld.a"),
    ],
)
def test_scales_and_packing(changes: dict[str, Any], field: str) -> None:
    assert refused(GEMM | changes).field == field


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "e4m3", "scale": {"a": ROW}},
        {
            "dtype": "e4m3",
            "scale": {"a": {"dtype": "f32", "block": "1x128"}, "b": {"dtype": "f32", "block": "128x128"}},
        },
        {
            "dtype": "e4m3",
            "scale": {"a": {"dtype": "ue8m0", "block": "1x128"}, "b": {"dtype": "ue8m0", "block": "128x128"}},
        },
        {"dtype": {"a": "e4m3", "b": "e5m2"}, "scale": {"a": MX, "b": MX}},
        {"dtype": {"a": "e4m3", "b": "e2m1"}, "scale": {"a": MX, "b": MX}},
        {"dtype": "e2m1", "scale": {"a": NV, "b": NV}},
        {"dtype": {"a": "u8", "b": "s8", "c": "bf16"}, "scale": {"a": ROW, "b": ROW}},
        {"dtype": {"a": "f16", "acc": "f16"}},
        {"dtype": {"a": "bf16", "c": "e4m3"}, "epilogue": {"activation": "gelu_tanh"}},
        {"dtype": "s8", "epilogue": {"activation": "relu"}},
        {"dtype": "e2m1", "n": 63, "layout": {"b": "nk"}},
        {"ld": {"a": 130}},
        {"align": {"a": 4, "b": 4096}},
        {"dtype": "e4m3", "align": {"a": 1}},
    ],
)
def test_combinations_that_make_sense(changes: dict[str, Any]) -> None:
    problem = parse_problem(GEMM | changes)
    assert parse_problem(problem.to_json()) == problem


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"heads_q": 0}, "heads_q"),
        ({"heads_kv": 0}, "heads_kv"),
        ({"heads_kv": None}, "heads_kv"),
        ({"heads_kv": 5}, "heads_kv"),
        ({"heads_kv": 64}, "heads_kv"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim_v": 0}, "head_dim_v"),
        ({"seq_q": -1}, "seq_q"),
        ({"seq_kv": 2**31}, "seq_kv"),
        ({"seq_kv": None}, "seq_kv"),
        ({"dtype": "f64"}, "dtype"),
        ({"dtype": "tf32"}, "dtype"),
        ({"dtype": {"q": "f16", "kv": "bf16"}}, "dtype.kv"),
        ({"dtype": {"q": "e4m3", "kv": "f16"}}, "dtype.kv"),
        ({"dtype": {"q": "f16", "acc": "f16"}}, "dtype.acc"),
        ({"dtype": {"q": "f16", "out": "bf16"}}, "dtype.out"),
        ({"layout": "sbhd"}, "layout"),
        ({"layout": {"q": "bshd"}}, "layout"),
        ({"mask": None}, "mask"),
        ({"mask": "sliding"}, "mask"),
        ({"window": 5}, "window"),
        ({"mask": "causal", "window": 5}, "window"),
        ({"mask": "window"}, "window"),
        ({"mask": "window", "window": 0}, "window"),
        ({"mask": "window", "window": -1}, "window"),
        ({"scale": 0}, "scale"),
        ({"scale": "auto"}, "scale"),
        ({"scale": math.nan}, "scale"),
        ({"scale": math.inf}, "scale"),
        ({"scale": 10**400}, "scale"),
        ({"scale": True}, "scale"),
        ({"softcap": 0.0}, "softcap"),
        ({"softcap": -1}, "softcap"),
        ({"sinks": 1}, "sinks"),
        ({"return_lse": "yes"}, "return_lse"),
        ({"scales": {"q": ROW}}, "scales.q"),
        ({"dtype": "e4m3", "scales": {"q": MX}}, "scales.q.dtype"),
        ({"dtype": "e4m3", "scales": {"k": {"dtype": "f32", "block": "1x128"}}}, "scales.k.block"),
        ({"dtype": "e4m3", "scales": {"kv": ROW}}, "scales.kv"),
        ({"kv": "paged"}, "kv"),
        ({"kv": {"kind": "blocked"}}, "kv.kind"),
        ({"kv": {"kind": "paged"}}, "kv.page_size"),
        ({"kv": {"kind": "paged", "page_size": 0}}, "kv.page_size"),
        ({"kv": {"page_size": 16}}, "kv.page_size"),
        ({"kv": {"kind": "ragged", "page_size": 16}}, "kv.page_size"),
        ({"causal": True}, "causal"),
        ({"m": 8}, "m"),
    ],
)
def test_attention_fields(changes: dict[str, Any], field: str) -> None:
    assert refused(ATTENTION | changes).field == field


def test_missing_fields_say_so() -> None:
    for base in (GEMM, ATTENTION):
        for name in base:
            error = refused({n: v for n, v in base.items() if n != name})
            assert error.field == name
            assert "is missing" in str(error)
            assert error.to_json()["value"] is None


@pytest.mark.parametrize("obj", [None, 5, "gemm", [], [GEMM], math.nan, True])
def test_not_an_object(obj: object) -> None:
    assert refused(obj).field == "problem"


@pytest.mark.parametrize(
    ("op", "nearest"), [("matmul", None), ("GEMM", "gemm"), ("atention", "attention"), (7, None)]
)
def test_unknown_op(op: object, nearest: str | None) -> None:
    error = refused(GEMM | {"op": op})
    assert (error.field, error.nearest) == ("op", nearest)


@pytest.mark.parametrize("op", ["grouped_gemm", "mla_decode", "attention_backward"])
def test_ops_that_are_spoken_for(op: str) -> None:
    assert "not built yet" in refused(GEMM | {"op": op}).allowed


def test_nearest_of_unknown_fields_and_words() -> None:
    assert refused(GEMM | {"epilog": {}}).nearest == "epilogue"
    assert refused(GEMM | {"epilogue": {"activation": "GELU"}}).nearest == "gelu"
    assert refused(GEMM | {"layout": {"b": "NK"}}).nearest == "nk"
    assert refused(ATTENTION | {"heads_kv": 5}).nearest == 4
    assert refused(GEMM | {"align": {"a": 24}}).nearest == 8


def test_operands_beyond_64_bits() -> None:
    huge = 2**31 - 1
    error = refused(GEMM | {"m": huge, "n": huge, "k": huge})
    assert error.field in ("m", "k")
    assert "2^63-1" in error.allowed
    # A pitch that one row never uses is no memory, but the pitch of 2^31 rows is.
    assert refused(GEMM | {"m": huge, "ld": {"a": huge}, "batch": 4}).field in ("m", "ld.a")
    assert refused(ATTENTION | {"batch": huge, "seq_q": huge, "heads_q": 1}).field in ("batch", "seq_q")
    fits = Gemm(m=131072, n=64, k=512, dtype="bf16", ld={"a": 40000})
    assert fits.sizes()["ld_a"] == 40000


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["f16", "window", "nk", "any", ""])
)
json_values = (
    scalars
    | st.lists(scalars, max_size=2)
    | st.dictionaries(st.sampled_from(["a", "b", "kind", "q"]), scalars)
)
names = [
    "m",
    "n",
    "dtype",
    "layout",
    "ld",
    "align",
    "scale",
    "alpha",
    "epilogue",
    "schema",
    "op",
    "heads_kv",
    "window",
    "mask",
    "kv",
    "scales",
    "softcap",
    "sinks",
    "batch",
    "x",
]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # the machine may be busy
@given(
    base=st.sampled_from([GEMM, ATTENTION]),
    changes=st.dictionaries(st.sampled_from(names), json_values, max_size=3),
)
def test_any_json_is_parsed_or_refused_by_name(base: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        problem = parse_problem(base | changes)
    except FieldError as error:
        json.dumps(error.to_json(), allow_nan=False)
    else:
        assert parse_problem(problem.to_json()) == problem
        assert problem.min_bytes >= 0
        json.dumps(problem.to_json(), allow_nan=False)
