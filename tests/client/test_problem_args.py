"""Does the command line spell every field of a problem and a job, and are wrong spellings refused by name?"""

from __future__ import annotations

import argparse
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from rooftile.errors import FieldError
from rooftile.problem import parse_problem
from rooftile.problem_args import add_job_arguments, add_problem_arguments, job_body, one_problem, read_spec


def body(line: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_problem_arguments(parser)
    add_job_arguments(parser)
    return job_body(parser.parse_args(shlex.split(line)))


def test_the_short_form() -> None:
    problem = {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"}
    assert body("gemm --m 8 --n 4096 --k 4096 --dtype f32") == {"problem": problem}
    assert body("--dtype f32 --m=8 gemm --n 4096 --k 4096") == {"problem": problem}


def test_every_field_of_gemm_can_be_said() -> None:
    problem = body(
        "gemm --m 8 --n 64 --k 32 --batch 2 --dtype-a e4m3 --dtype-b e5m2 --dtype-acc f32 --dtype-c f16"
        " --layout-a km --layout-b nk --layout-c nm --ld-a 40 --ld-b 48 --ld-c 56 --align-a 32 --align-b 64"
        " --align-c 128 --scale-a f32:1x128 --scale-b f32:128x128 --alpha one --beta any --bias n"
        " --activation gelu --residual"
    )["problem"]
    full = parse_problem(problem).to_json()
    assert {name for name in full if full[name] != parse_problem(short(full)).to_json()[name]} == {
        "batch", "dtype", "layout", "ld", "align", "scale", "alpha", "beta", "epilogue",
    }  # fmt: skip
    assert full["scale"] == {
        "a": {"dtype": "f32", "block": "1x128"},
        "b": {"dtype": "f32", "block": "128x128"},
    }
    assert full["ld"] == {"a": 40, "b": 48, "c": 56}
    assert full["epilogue"] == {"bias": "n", "activation": "gelu", "residual": True}


def short(full: dict[str, Any]) -> dict[str, Any]:
    return {"op": "gemm", "m": full["m"], "n": full["n"], "k": full["k"], "dtype": "f32"}


def test_every_field_of_attention_can_be_said() -> None:
    problem = body(
        "attention --batch 2 --heads-q 8 --heads-kv 4 --seq-q 16 --seq-kv 64 --head-dim 64 --head-dim-v 32"
        " --dtype-q f16 --dtype-kv e4m3 --dtype-acc f32 --dtype-out f32 --layout bhsd --mask window"
        " --window 8"
        " --scale 0.5 --softcap 30 --sinks --return-lse --scale-k f32:tensor --scale-v f32:tensor"
        " --kv-kind paged --page-size 16"
    )["problem"]
    full = parse_problem(problem).to_json()
    default = parse_problem(
        {"op": "attention", "heads_q": 8, "seq_q": 16, "head_dim": 64, "dtype": "f16"}
    ).to_json()
    same = {name for name in full if full[name] == default[name]}
    assert same == {"schema", "op", "heads_q", "seq_q", "head_dim"}


def test_a_bare_dtype_goes_together_with_single_ones() -> None:
    assert body("gemm --dtype s8 --dtype-b u8")["problem"]["dtype"] == {"a": "s8", "b": "u8"}
    assert body("attention --dtype-kv e4m3 --dtype f16")["problem"]["dtype"] == {"q": "f16", "kv": "e4m3"}


def test_lists_of_open_sizes_are_sweeps() -> None:
    got = body("gemm --m 1,2,4 --batch 1,3 --n 8 --k 8 --dtype f32")
    assert got == {
        "problem": {"op": "gemm", "n": 8, "k": 8, "dtype": "f32"},
        "sweep": {"m": [1, 2, 4], "batch": [1, 3]},
    }
    with pytest.raises(FieldError, match="only m and batch may be lists") as caught:
        body("gemm --n 1,2")
    assert caught.value.field == "n"


def test_options_of_the_job() -> None:
    got = body(
        "gemm --m 1 --device auto --trials 60 --seconds 1.5 --device-seconds 9 --cache warm --launch eager"
        " --seed 7"
        " --force --priority -3 --family gemm_x86 --family other --param mr=4,6 --param pack=true"
        " --emulate never"
    )
    assert got == {
        "problem": {"op": "gemm", "m": 1}, "target": {"device": "auto"},
        "budget": {"trials": 60, "seconds": 1.5, "device_seconds": 9},
        "policy": {"cache": "warm", "launch": "eager"}, "seed": 7, "force": True, "priority": -3,
        "families": ["gemm_x86", "other"], "params": {"mr": [4, 6], "pack": True}, "emulate": "never",
    }  # fmt: skip
    assert body("gemm --arch x86-64-v4")["target"] == {"arch": "x86-64-v4"}
    for line, field in (("gemm --arch a --device b", "arch"), ("gemm --param mr", "params")):
        with pytest.raises(FieldError) as caught:
            body(line)
        assert caught.value.field == field


@pytest.mark.parametrize("text", ["8.5", "1e3", "0x10", "1_000", "٣", " 8", "nan", "inf", "", "-1", "eight"])
def test_wrong_numbers_reach_the_problems_own_check(text: str) -> None:
    problem = body(f"gemm --m={shlex.quote(text)} --n 8 --k 8 --dtype f32")["problem"]
    json.dumps(problem, allow_nan=False)
    with pytest.raises(FieldError) as caught:
        parse_problem(problem)
    assert caught.value.field == "m"


@pytest.mark.parametrize(
    ("line", "field"),
    [("", "op"), ("gemn --m 1", "op"), ("gemm --heads-q 8", "heads-q"), ("attention --m 8", "m"),
     ("gemm --layout bshd", "layout"), ("--spec /nowhere/at/all", "spec"), ("gemm --spec -", "spec")],
)  # fmt: skip
def test_wrong_lines_name_the_field(line: str, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        body(line)
    assert caught.value.field == field


# -- spec files -------------------------------------------------------------------------------------------


def test_a_file_may_hold_a_problem_a_list_or_a_job(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    problem = {"op": "gemm", "m": 1, "n": 2, "k": 3, "dtype": "f32"}
    for content, wanted in (
        (problem, {"problem": problem}),
        ([problem, problem], {"problems": [{"problem": problem}, {"problem": problem}]}),
        ({"problem": problem, "sweep": {"batch": [1]}, "seed": 1}, None),
    ):
        file.write_text(json.dumps(content))
        assert read_spec(str(file)) == (wanted or content)
    got = body(f"--spec {file} --trials 5 --device auto")
    assert got == {**content, "budget": {"trials": 5}, "target": {"device": "auto"}}


def test_options_take_the_place_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"problem": {}, "device": "x", "budget": {"trials": 1, "seconds": 2}}')
    assert body(f"--spec {file} --trials 5 --arch y") == {
        "problem": {}, "target": {"arch": "y"}, "budget": {"trials": 5, "seconds": 2},
    }  # fmt: skip


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"op": "gemm"}')))
    assert body("--spec -") == {"problem": {"op": "gemm"}}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1", b"nonsense", b"3", b'{"m": NaN}', b'{"m": 1, "m": 2}', b"\xff\xfe", b"[" * 100_000,
     b" " * (2**20 + 1)],
)  # fmt: skip
def test_files_that_are_no_spec(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "spec.json"
    file.write_bytes(content)
    with pytest.raises(FieldError) as caught:
        read_spec(str(file))
    assert caught.value.field == "spec"


def test_where_one_problem_is_asked_for(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_problem_arguments(parser)
    assert one_problem(parser.parse_args(["gemm", "--m", "1"])) == {"op": "gemm", "m": 1}
    file = tmp_path / "spec.json"
    file.write_text('{"op": "gemm", "m": 1}')
    assert one_problem(parser.parse_args(["--spec", str(file)])) == {"op": "gemm", "m": 1}
    file.write_text('[{"op": "gemm", "m": 1}]')
    for words, field in ((["gemm", "--m", "1,2"], "m"), (["--spec", str(file)], "spec")):
        with pytest.raises(FieldError) as caught:
            one_problem(parser.parse_args(words))
        assert caught.value.field == field
