"""Is an attention problem what its JSON says: defaults, masks counted exactly, work?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooftile.problem import Attention, parse_problem

SHORT = {"op": "attention", "heads_q": 32, "seq_q": 1, "head_dim": 128, "dtype": "bf16"}


def attention(**changes: object) -> Attention:
    problem = parse_problem(SHORT | changes)
    assert isinstance(problem, Attention)
    return problem


def test_short_form_comes_back_written_out() -> None:
    assert attention().to_json() == {
        "schema": 1,
        "op": "attention",
        "batch": 1,
        "heads_q": 32,
        "heads_kv": 32,
        "seq_q": 1,
        "seq_kv": 1,
        "head_dim": 128,
        "head_dim_v": 128,
        "dtype": {"q": "bf16", "kv": "bf16", "acc": "f32", "out": "bf16"},
        "layout": "bshd",
        "mask": "none",
        "window": None,
        "scale": None,
        "softcap": None,
        "sinks": False,
        "return_lse": False,
        "scales": {"q": None, "k": None, "v": None},
        "kv": {"kind": "contiguous", "page_size": None},
    }


def test_round_trip_of_everything() -> None:
    p = attention(
        batch=3,
        heads_kv=8,
        seq_kv=77,
        head_dim_v=64,
        dtype={"q": "bf16", "kv": "e4m3"},
        layout="bhsd",
        mask="window",
        window=5,
        scale=1,
        softcap=30.0,
        sinks=True,
        return_lse=True,
        scales={"k": {"dtype": "f32", "block": "tensor"}},
        kv={"kind": "paged", "page_size": 16},
    )
    assert parse_problem(p.to_json()) == p
    assert p.to_json()["scale"] == 1.0
    assert attention(scale=1).key == attention(scale=1.0).key != attention().key


@pytest.mark.parametrize(("q", "out"), [("f32", "f32"), ("f16", "f16"), ("e4m3", "bf16"), ("e5m2", "bf16")])
def test_output_follows_the_query(q: str, out: str) -> None:
    d = attention(dtype=q).dtype
    assert (d.q, d.kv, d.acc, d.out) == (q, q, "f32", out)


def brute(p: Attention) -> tuple[int, int, int]:
    """Visible pairs, queries that see a key, keys that are seen."""
    pairs = set()
    for i in range(p.seq_q):
        at = i + p.seq_kv - p.seq_q
        for j in range(p.seq_kv):
            if p.mask == "none" or (j <= at and (p.window is None or j > at - p.window)):
                pairs.add((i, j))
    return len(pairs), len({i for i, _ in pairs}), len({j for _, j in pairs})


@given(
    seq_q=st.integers(0, 20),
    seq_kv=st.integers(0, 20),
    mask=st.sampled_from(["none", "causal", "window"]),
    window=st.integers(1, 25),
)
def test_masked_area_and_least_bytes_are_exact(seq_q: int, seq_kv: int, mask: str, window: int) -> None:
    p = Attention(
        4,
        seq_q,
        8,
        "f32",
        batch=3,
        heads_kv=2,
        seq_kv=seq_kv,
        head_dim_v=6,
        mask=mask,
        window=window if mask == "window" else None,
    )
    pairs, queries, keys = brute(p)
    assert p.visible_pairs == pairs
    assert p.flops == 2 * 3 * 4 * pairs * (8 + 6)
    out = 3 * 4 * seq_q * 6
    assert p.min_bytes == 4 * (out + 3 * 4 * queries * 8 + 3 * 2 * keys * (8 + 6))


def test_decode_sees_all_keys_under_a_causal_mask() -> None:
    # Anchored top-left it would see one.
    assert attention(seq_kv=4096, mask="causal").visible_pairs == 4096
    assert attention(seq_q=16, seq_kv=4096, mask="causal").visible_pairs == sum(range(4081, 4097))


def test_empty_sequences() -> None:
    assert attention(seq_q=0).empty
    assert attention(seq_kv=0).empty
    assert attention(seq_kv=0).flops == 0
    assert attention(seq_kv=0).min_bytes == 32 * 128 * 2  # zeros are still written


def test_extras_are_counted() -> None:
    base = attention(seq_kv=64, dtype="e4m3")
    row = {"dtype": "f32", "block": "row"}
    more = attention(seq_kv=64, dtype="e4m3", return_lse=True, sinks=True, scales={"q": row, "k": row})
    assert more.min_bytes - base.min_bytes == 4 * 32 + 4 * 32 + 4 * 32 + 4 * 32 * 64


def test_titles() -> None:
    assert attention(heads_kv=8, seq_kv=4096, mask="causal").title() == (
        "attention 1x32/8h 1x4096 d128 bf16 causal"
    )
    assert attention(mask="window", window=9, kv={"kind": "paged", "page_size": 16}).title() == (
        "attention 1x32h 1x1 d128 bf16 window 9 paged16"
    )
