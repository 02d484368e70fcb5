"""Do keys stay what they were? A change here orphans every result that users have stored: raise the schema
number instead."""

from typing import Any

import pytest
from rooftile.problem import parse_problem

from search_space.schedule import Schedule

MX = {"dtype": "ue8m0", "block": 32}
PROBLEMS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"},
        "27f7d77541557872e1b9624e63097c2c77d27f9ab868d66e4cacde847b1f0cdf",
        "d80d175c0fd635d6cefaed1a11d01e750c52887556d787055f0030aef600580c",
    ),
    (
        {
            "op": "gemm",
            "batch": 2,
            "m": 17,
            "n": 1003,
            "k": 777,
            "dtype": {"a": "f16", "acc": "f16", "c": "f32"},
            "layout": {"a": "km", "b": "nk", "c": "nm"},
            "ld": {"a": 24},
            "align": {"b": 4},
            "alpha": "one",
            "beta": "any",
            "epilogue": {"bias": "n", "activation": "gelu_tanh", "residual": True},
        },
        "b30526e31d9aaf45347feeaecf8a73d39ef803f77c0dfcffc9bf07b809bd2eb1",
        "e12d5ac22e4b7ced5da054447c423c418152d36f3da5d708af099cc36018db70",
    ),
    (
        {"op": "gemm", "m": 1, "n": 64, "k": 64, "dtype": "e2m1", "scale": {"a": MX, "b": MX}},
        "ca089c995326c0fd223fddb63185aea122e3c9e2c733458d47a30cfd34c1a8fd",
        "c16f1428da01ef227a98a0ed2d6f354f29f4f4b3ff46f5a7673a520e596eae72",
    ),
    (
        {"op": "attention", "heads_q": 32, "seq_q": 1, "head_dim": 128, "dtype": "bf16"},
        "96847bdf2e9cbc9a2b16d02cfbc5e14382120bcdfae505f8ea3a74c3be1fe718",
        "ea40dbf3a735fc335076ba5131c6dd717f294bfcd588ecd9d041800e144d2937",
    ),
    (
        {
            "op": "attention",
            "batch": 4,
            "heads_q": 64,
            "heads_kv": 8,
            "seq_q": 3,
            "seq_kv": 4096,
            "head_dim": 192,
            "head_dim_v": 128,
            "dtype": {"q": "bf16", "kv": "e4m3"},
            "layout": "bhsd",
            "mask": "window",
            "window": 128,
            "scale": 0.125,
            "softcap": 30,
            "sinks": True,
            "return_lse": True,
            "scales": {"v": {"dtype": "f32", "block": "tensor"}},
            "kv": {"kind": "paged", "page_size": 64},
        },
        "7b6ab0d61fd4e0a2da80cbc97a73a9a142b6d38b6e754db09246f4fcb22cf852",
        "48f1edf45224aefe483a1ece423f752603a54c4f737772f905329561bab747b3",
    ),
]


@pytest.mark.parametrize(("obj", "problem_key", "layer_key"), PROBLEMS)
def test_problem_and_layer_keys(obj: dict[str, Any], problem_key: str, layer_key: str) -> None:
    problem = parse_problem(obj)
    assert problem.key == problem_key
    assert problem.layer().key == layer_key


def test_canonical_text() -> None:
    problem = parse_problem(PROBLEMS[0][0])
    assert problem.canonical() == (
        '{"align":{},"alpha":"any","batch":1,"beta":"zero","dtype":{"a":"f32","acc":"f32","b":"f32","c":"f32"},'
        '"epilogue":{"activation":null,"bias":null,"residual":false},"k":4096,'
        '"layout":{"a":"mk","b":"kn","c":"mn"},"ld":{},"m":8,"n":4096,"op":"gemm",'
        '"scale":{"a":null,"b":null},"schema":1}'
    )


def test_schedule_key() -> None:
    schedule = Schedule.make(
        "gemm_x86", {"tile": {"mr": 6, "nr": 16}, "order": {"split_k": False, "loop": "jpi"}}
    )
    assert schedule.canonical() == (
        '{"family":"gemm_x86","layout":{},"movement":{},"order":{"loop":"jpi","split_k":false},"roles":{},'
        '"schema":1,"tile":{"mr":6,"nr":16}}'
    )
    assert schedule.key == "bcdc9618b39b097d9210dcc3554ef27fb86eb04c3d3d80a308e5b4362cad6eb7"
