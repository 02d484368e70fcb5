"""Is a Layer its Problem without the run-time sizes, and is there one bucket function for all?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooftile.errors import FieldError
from rooftile.problem import BUCKET_VERSION, MAX_SIZE, Attention, Gemm, bucket, parse_layer

sizes = st.integers(0, MAX_SIZE)


@given(m=sizes, batch=st.integers(1, 1000))
def test_every_size_has_the_same_layer(m: int, batch: int) -> None:
    layer = Gemm(m=8, n=64, k=32, dtype="f32", epilogue={"bias": "n"}).layer()
    assert layer.open == ("m", "batch")
    at = layer.at(m=m, batch=batch)
    assert at.layer() == layer
    assert (at.sizes()["m"], at.sizes()["batch"]) == (m, batch)


def test_what_is_fixed_is_in_the_key() -> None:
    base = Gemm(m=8, n=64, k=32, dtype="f32")
    assert Gemm(m=9, n=64, k=32, dtype="f32", batch=3).layer().key == base.layer().key
    assert Gemm(m=8, n=65, k=32, dtype="f32").layer().key != base.layer().key
    assert base.layer().key != base.key


def test_attention_leaves_the_sequences_open() -> None:
    layer = Attention(32, 100, 64, "bf16", heads_kv=8, seq_kv=7, mask="causal").layer()
    assert layer.open == ("batch", "seq_q", "seq_kv")
    assert layer.at(seq_q=1, seq_kv=4096, batch=2) == Attention(
        32, 1, 64, "bf16", heads_kv=8, seq_kv=4096, batch=2, mask="causal"
    )
    assert layer.at(seq_q=5).sizes()["seq_kv"] == 5


def test_layer_json_round_trip() -> None:
    layer = Gemm(m=8, n=64, k=32, dtype="bf16").layer()
    assert layer.to_json()["open"] == ["m", "batch"]
    assert "m" not in layer.to_json()
    assert parse_layer(layer.to_json()) == layer
    assert parse_layer({"op": "gemm", "n": 64, "k": 32, "dtype": "bf16"}) == layer
    assert layer.title() == "gemm *x64x32 bf16 kn"


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        ({"op": "gemm", "n": 4, "dtype": "f32"}, "k"),
        ({"op": "gemm", "m": 4, "n": 4, "k": 4, "dtype": "f32"}, "m"),
        ({"op": "gemm", "n": 4, "k": 4, "dtype": "fp32"}, "dtype"),
        ({"op": "gemm", "n": 4, "k": 4, "dtype": "f32", "open": ["n"]}, "open"),
        ({"op": "conv"}, "op"),
        ([], "problem"),
    ],
)
def test_bad_layers(obj: object, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        parse_layer(obj)
    assert caught.value.field == field


def test_only_open_sizes_can_be_set() -> None:
    layer = Gemm(m=8, n=64, k=32, dtype="f32").layer()
    with pytest.raises(FieldError, match="open sizes"):
        layer.at(m=8, n=65)
    with pytest.raises(FieldError, match="m is missing"):
        layer.at(batch=2)


# -- buckets ------------------------------------------------------------------------------------------------


@given(a=sizes, b=sizes)
def test_buckets_are_monotone_and_idempotent_and_close(a: int, b: int) -> None:
    low, high = min(a, b), max(a, b)
    assert bucket(low) <= bucket(high)
    assert bucket(bucket(a)) == bucket(a)
    assert a <= bucket(a) <= MAX_SIZE
    assert bucket(a) - a <= a // 8


def test_buckets_of_version_one_never_change() -> None:
    assert BUCKET_VERSION == 1
    assert [bucket(v) for v in range(17)] == list(range(17))
    given = [17, 18, 19, 32, 33, 36, 37, 64, 65, 1000, 1024, 1025, 2001, 2048, 2049, 8192, 8193, MAX_SIZE]
    assert [bucket(v) for v in given] == [
        18,
        18,
        20,
        32,
        36,
        36,
        40,
        64,
        72,
        1024,
        1024,
        1152,
        2048,
        2048,
        2304,
        8192,
        9216,
        MAX_SIZE,
    ]


def test_eight_buckets_between_powers_of_two() -> None:
    for power in (16, 1024, 2**20):
        assert len({bucket(v) for v in range(power + 1, 2 * power + 1, max(1, power // 64))}) == 8


@pytest.mark.parametrize("value", [-1, MAX_SIZE + 1, True, 8.0, "8"])
def test_what_is_no_size_has_no_bucket(value: object) -> None:
    with pytest.raises(FieldError):
        bucket(value)  # type: ignore[arg-type]
