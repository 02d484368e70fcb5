"""Is a GEMM problem what its JSON says: defaults, keys, sizes, work?"""

import pytest
from rooftile.problem import (
    Gemm,
    GemmDtypes,
    GemmLayout,
    operand_dtype,
    operand_shape,
    parse_problem,
)

SHORT = {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"}


def gemm(**changes: object) -> Gemm:
    problem = parse_problem(SHORT | changes)
    assert isinstance(problem, Gemm)
    return problem


def test_short_form_comes_back_written_out() -> None:
    assert gemm().to_json() == {
        "schema": 1,
        "op": "gemm",
        "batch": 1,
        "m": 8,
        "n": 4096,
        "k": 4096,
        "dtype": {"a": "f32", "b": "f32", "acc": "f32", "c": "f32"},
        "layout": {"a": "mk", "b": "kn", "c": "mn"},
        "ld": {},
        "align": {},
        "scale": {"a": None, "b": None},
        "alpha": "any",
        "beta": "zero",
        "epilogue": {"bias": None, "activation": None, "residual": False},
    }


@pytest.mark.parametrize(
    ("dtype", "acc", "c"),
    [
        ("f64", "f64", "f64"),
        ("f32", "f32", "f32"),
        ("tf32", "f32", "f32"),
        ("f16", "f32", "f16"),
        ("bf16", "f32", "bf16"),
        ("e4m3", "f32", "bf16"),
        ("e5m2", "f32", "bf16"),
        ("e2m1", "f32", "bf16"),
        ("s8", "s32", "s32"),
        ("u8", "s32", "s32"),
    ],
)
def test_accumulator_and_output_follow_the_input(dtype: str, acc: str, c: str) -> None:
    assert gemm(dtype=dtype).dtype == GemmDtypes(dtype, dtype, acc, c)


def test_constructor_and_json_agree() -> None:
    built = Gemm(m=8, n=4096, k=4096, dtype="f32", layout={"b": "nk"}, epilogue={"bias": "n"})
    assert built == gemm(layout={"b": "nk"}, epilogue={"bias": "n"})
    assert built == parse_problem(built.to_json())
    assert hash(built) == hash(parse_problem(built.to_json()))
    assert built.layout == GemmLayout("mk", "nk", "mn")


def test_every_field_is_in_the_key() -> None:
    variants = [
        gemm(),
        gemm(m=9),
        gemm(n=4095),
        gemm(k=4095),
        gemm(batch=2),
        gemm(dtype="f64"),
        gemm(dtype={"a": "f32", "c": "bf16"}),
        gemm(layout={"a": "km"}),
        gemm(layout={"b": "nk"}),
        gemm(layout={"c": "nm"}),
        gemm(ld={"a": 4097}),
        gemm(ld={"b": 4097}),
        gemm(ld={"c": 4097}),
        gemm(align={"a": 4}),
        gemm(align={"b": 4}),
        gemm(align={"c": 4}),
        gemm(alpha="one"),
        gemm(beta="any"),
        gemm(epilogue={"bias": "n"}),
        gemm(epilogue={"activation": "relu"}),
        gemm(epilogue={"residual": True}),
        gemm(dtype="e4m3"),
        gemm(dtype="e4m3", scale={"a": {"dtype": "f32", "block": "tensor"}}),
        gemm(dtype="e4m3", scale={"b": {"dtype": "f32", "block": "tensor"}}),
    ]
    assert len({v.key for v in variants}) == len(variants)


def test_defaults_written_out_by_hand_change_no_key() -> None:
    same = gemm(
        schema=1,
        batch=1,
        ld={"a": 4096, "b": None, "c": 4096},
        align={"a": 16},
        layout={},
        scale={},
        epilogue={},
        dtype={"a": "f32"},
    )
    assert same.key == gemm().key


def test_pitches_follow_the_layout() -> None:
    assert gemm().sizes() | {} == {
        "m": 8,
        "n": 4096,
        "k": 4096,
        "batch": 1,
        "ld_a": 4096,
        "ld_b": 4096,
        "ld_c": 4096,
    }
    turned = gemm(n=100, k=30, layout={"a": "km", "b": "nk", "c": "nm"}, ld={"c": 11})
    assert {k: v for k, v in turned.sizes().items() if k.startswith("ld")} == {
        "ld_a": 8,
        "ld_b": 30,
        "ld_c": 11,
    }
    names = turned.plan_names()
    assert names["stride_a"] == 30 * 8
    assert names["stride_b"] == 100 * 30
    assert names["stride_out"] == names["stride_residual"] == 100 * 11


def test_operands_have_their_layouts_shape() -> None:
    p = gemm(n=5, k=3, layout={"b": "nk", "c": "nm"}, epilogue={"bias": "n", "residual": True})
    assert operand_shape(p, "a") == (8, 3)
    assert operand_shape(p, "b") == (5, 3)
    assert operand_shape(p, "out") == operand_shape(p, "residual") == (5, 8)
    assert operand_shape(p, "bias") == (5,)
    assert operand_shape(gemm(batch=2), "a") == (2, 8, 4096)
    with pytest.raises(ValueError, match="no operand"):
        operand_shape(p, "q")


def test_bias_of_eight_bit_output_is_bf16() -> None:
    assert operand_dtype(gemm(dtype={"a": "e4m3", "c": "e4m3"}), "bias") == "bf16"
    assert operand_dtype(gemm(), "bias") == "f32"
    assert operand_dtype(gemm(dtype={"a": "f16", "c": "f32"}), "out") == "f32"


def test_work() -> None:
    p = gemm(m=3, n=5, k=7, batch=2)
    assert p.flops == 2 * 2 * 3 * 5 * 7
    assert p.min_bytes == 2 * 4 * (3 * 7 + 7 * 5 + 3 * 5)
    full = gemm(m=3, n=5, k=7, batch=2, beta="one", epilogue={"bias": "n", "residual": True})
    # C, bias once for all entries, residual.
    assert full.min_bytes - p.min_bytes == 2 * 4 * 15 + 4 * 5 + 2 * 4 * 15


def test_work_counts_narrow_operands_and_scales() -> None:
    mx = {"dtype": "ue8m0", "block": 32}
    p = gemm(m=4, n=6, k=70, dtype="e2m1", scale={"a": mx, "b": mx})
    operands = (4 * 70 + 6 * 70) // 2 + 2 * 4 * 6
    assert p.min_bytes == operands + 3 * 4 + 3 * 6  # ceil(70 / 32) = 3 one-byte scales a row
    rows = {"dtype": "f32", "block": "row"}
    blocks = {"dtype": "f32", "block": "128x128"}
    p = gemm(m=4, n=300, k=130, dtype="e4m3", scale={"a": rows, "b": blocks})
    assert p.min_bytes == 4 * 130 + 130 * 300 + 2 * 4 * 300 + 4 * 4 + 4 * (3 * 2)


def test_alpha_zero_reads_no_operand() -> None:
    p = gemm(m=3, n=5, k=7, alpha="zero", beta="one")
    assert p.flops == 0
    assert p.min_bytes == 4 * 2 * 15


@pytest.mark.parametrize("size", ["m", "n", "k"])
def test_zero_sizes_are_legal_and_empty(size: str) -> None:
    p = gemm(**{size: 0})
    assert p.empty
    assert p.flops == 0
    # k = 0 still writes (beta * C or zeros); without m or n there is nothing to write.
    assert p.min_bytes == (8 * 4096 * 4 if size == "k" else 0)
    assert not gemm().empty


def test_extremes_are_accepted() -> None:
    assert gemm(m=2**31 - 1, n=1, k=1).flops == 2 * (2**31 - 1)
    assert gemm(batch=2**31 - 1, m=1, n=1, k=1).batch == 2**31 - 1


def test_title_is_short_and_says_what_is_unusual() -> None:
    assert gemm().title() == "gemm 8x4096x4096 f32 kn"
    odd = gemm(
        batch=3,
        dtype={"a": "bf16", "c": "f32"},
        layout={"b": "nk"},
        beta="any",
        epilogue={"bias": "n", "activation": "silu", "residual": True},
    )
    assert odd.title() == "gemm 8x4096x4096 batch 3 bf16->f32 nk +c +bias +silu +residual"
