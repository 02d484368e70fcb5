"""Is the check of a GPU machine one command that says what it found, also when it is killed, or finds no
GPU?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rooftile.errors import DeviceError
from rooftile.gpu_detect import local_gpus
from rooftile.problem import Gemm, parse_problem

from bench.gpu import collect_wheels, tuning
from bench.gpu.cases import SHAPES, count_base, draw
from bench.gpu.check import ROOT
from bench.gpu.counters import METRICS, TMA_METRICS, emulated, metrics_of, parse_ncu, ratios, total
from bench.gpu.report import Budget, Report
from bench.gpu.run import CPU_SHARES, ORDER, SHARES, counts_of, share_of
from search_space.device import Device
from search_space.registry import get_family
from worker.compile import compile_kernel

SCRIPT = ROOT / "bench" / "gpu" / "check.py"


def start(*arguments: str, python: tuple[str, ...] = (sys.executable,)) -> subprocess.Popen[str]:
    # As a person would: no path of ours is set.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ROOFTILE_HOME")}
    return subprocess.Popen(
        [*python, str(SCRIPT), *arguments],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
    )


def has_gpu() -> bool:
    try:
        return bool(local_gpus())
    except DeviceError:
        return False


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_exits_3(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    process = start("--minutes", "8", "--json", str(file))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "there is no GPU to be checked: A GPU is not here" in err
    assert not out
    assert not file.exists()


def test_the_whole_path_on_a_cpu(tmp_path: Path) -> None:
    """Verification and the embedded tuner, on gemm_x86, from the same script."""
    file = tmp_path / "out.json"
    started = time.monotonic()
    process = start("--minutes", "0.5", "--device", "cpu", "--json", str(file))
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    found = json.loads(file.read_text())
    # The time begins when the lock of benches is there.
    assert found["figures"]["seconds"] < 30 + 10
    assert time.monotonic() - started < 280
    verified = [row for row in found["rows"] if row["step"] == "verify"]
    assert verified
    assert found["figures"]["kernels_verified"] == len(verified)
    assert found["figures"]["kernels_wrong"] == 0
    assert {row["family"] for row in verified} == {"gemm_x86"}
    assert all(row["result"] == "right" for row in verified)
    tuned = [row for row in found["rows"] if row["step"] == "tune"]
    left = [text for text in found["left_out"] if text.startswith("tune")]
    assert len(tuned) + len(left) == len(tuning.CPU_ORDER), "what is not there is said"
    assert tuned, "the tuner ran"
    assert tuned[0]["trials"], tuned[0]
    if tuned and "entrants" in tuned[0]:  # on a machine busy with other work the time may be too short
        assert {one["role"] for one in tuned[0]["entrants"]} >= {"default", "baseline"}
    assert found["environment"]["checked"]["arch"].startswith("x86-64")
    assert found["steps"]["end"] == {"wrong": [], "exit": 0}
    assert out.startswith("check: kernels_verified")


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    process = start("--minutes", "5", "--device", "cpu", "--only", "verify", "--json", str(file))
    try:
        deadline = time.monotonic() + 200
        rows: list[Any] = []
        while len(rows) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            if file.exists():
                rows = json.loads(file.read_text())["rows"]  # whole whenever it is read
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    found = json.loads(file.read_text())
    assert len(found["rows"]) >= 2
    assert found["rows"][:2] == rows[:2]


def test_the_last_part_that_was_chosen_has_all_of_the_time() -> None:
    assert share_of("verify", {"verify"}, SHARES) == 1.0
    assert share_of("verify", {"verify"}, CPU_SHARES) == 1.0
    assert share_of("verify", {"tests", "verify"}, SHARES) == 1.0
    assert share_of("tests", {"tests", "verify"}, SHARES) == SHARES["tests"]
    assert [share_of(name, set(ORDER), SHARES) for name in ORDER[:-1]] == [0.25, 0.35, 0.15]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    process = start("--wheels", str(tmp_path), python=(sys.executable, "-S"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "not installed here: alembic" in err
    assert "collect_wheels.py" in err


@pytest.mark.parametrize(
    "arguments", [["--minutes", "0"], ["--device", "tpu"], ["--prepare", "sm_80"], ["--minutes", "nan"]]
)
def test_wrong_use_exits_2(arguments: list[str]) -> None:
    process = start(*arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "check.py" in err


# -- parts ------------------------------------------------------------------------------------------------


def test_the_report_is_whole_and_strict(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "out.json"
    report = Report(file, {"device": "x"})
    assert json.loads(file.read_text())["rows"] == []
    report.row(step="verify", error=float("nan"), path=(1, 2))
    report.step("verify", kernels=1)
    report.step("verify", wrong=0)
    report.leave_out("the rest")
    found = json.loads(file.read_text())
    assert found["rows"] == [{"step": "verify", "error": None, "path": [1, 2]}]
    assert found["steps"] == {"verify": {"kernels": 1, "wrong": 0}}
    assert found["left_out"] == ["the rest"]
    assert [one.name for one in file.parent.iterdir()] == ["out.json"]


def test_shares_are_of_what_is_left() -> None:
    budget = Budget(100.0, 20.0)
    assert 79 < budget.left_s <= 80
    assert budget.share(0.5) == pytest.approx(40, abs=1)
    assert Budget(1.0, 5.0).left_s == 0.0


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89", "sm_90a", "sm_120a"])
def test_kernels_are_drawn_alike_and_from_the_shape_set(arch: str) -> None:
    device = Device.for_arch(arch)
    base = count_base(device)
    assert base >= 8
    first, again = (list(islice(draw(device, 3), base + 6)) for _ in range(2))
    assert [k.schedule for k in first] == [k.schedule for k in again]
    assert [k.cases for k in first] == [k.cases for k in again]
    assert [k.base for k in first] == [True] * base + [False] * 6
    families = {k.family.name for k in first}
    wanted = {"sm_70": {"gemm_sm70"}, "sm_90a": {"gemm_sm70", "gemm_sm80", "gemm_sm90"}}
    assert families == wanted.get(arch, {"gemm_sm80"})
    for kernel in first:
        assert any(case.problem.k == 0 for case in kernel.cases)
        assert any(case.problem.batch == 3 for case in kernel.cases)
        for case in kernel.cases:
            assert case.problem.n in SHAPES["n"] or case.problem.n % 16 == 0
    plans = [(k, k.family.plan(k.problem, device, k.schedule)) for k in first]
    run = sum(not p.check({**c.names(), "sm_count": 1}, {}) for k, p in plans for c in k.cases)
    assert run > 0.5 * sum(len(k.cases) for k in first), "most cases are for most kernels"


def test_problems_of_models_are_there_with_their_source() -> None:
    data = json.loads(tuning.DATA.read_text())
    assert data["source"]
    assert data["license"]
    for row in data["problems"]:
        assert row["source"]
        for m in row["m_values"]:
            parse_problem({**row["problem"], "m": m})
    names = [name for name, _ in tuning.wanted("gpu")]
    assert len(set(names)) == len(tuning.ORDER)
    assert len(tuning.wanted("cpu")) == 3


NCU = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum","smsp__inst_executed.sum"
"","","","sector","inst"
"0","1","gemm","4,096","12345"
"""


def test_ncu_is_read_and_compared() -> None:
    found = parse_ncu(NCU)
    assert found == {
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 4096.0,
        "smsp__inst_executed.sum": 12345.0,
    }
    ours = {"all": {"global_sectors": 2048, "instructions": {"load": 1000, "matrix": 234.5}}}
    assert total(ours, "instructions") == 1234.5
    assert ratios(found, ours) == {"global_sectors": 2.0, "instructions": 10.0}
    assert parse_ncu("==ERROR== ERR_NVGPUCTRPERM") == {}
    assert {path[0] for path in METRICS.values()} >= {"global_sectors", "bank_conflicts"}


def test_copies_by_tma_are_compared(tmp_path: Path) -> None:
    """Whole tiles of 64 x 64 for a cluster of two blocks that share B: by hand, what each counter must be."""
    problem = Gemm(128, 64, 128, "f16", layout={"b": "nk"})
    family, device = get_family("gemm_sm90"), Device.for_arch("sm_90a")
    schedule = family.default(problem, device).replace(
        bm=64, bn=64, bk=64, stages=2, cluster_m=2, cluster_n=1, store="tma", store_columns=64, vector=2,
        swizzle_a=128, swizzle_b=128, swap_ab=False, hand_off="cooperative", consumers_m=1, consumers_n=1,
        registers="40/248", split_k=1, split_sum="last",
    )  # fmt: skip
    assert family.check(problem, device, schedule) == []
    plan = family.plan(problem, device, schedule)
    ptx = compile_kernel(family.build(problem, device, schedule), home=tmp_path).ptx
    assert ptx is not None
    counters = emulated(ptx, plan, problem)
    tile = 64 * 64 * 2
    # Two blocks with two steps each: a tile of A of its own, half of one of B for both.
    found = {path: total(counters, *path) for path in TMA_METRICS.values()}
    assert found == {
        ("bytes", "global_to_shared"): 2 * 2 * (tile + tile / 2),
        ("bytes", "multicast_to_shared"): 2 * 2 * tile,
        ("bytes", "shared_to_global"): 2 * tile,
        ("bulk", "load_boxes"): 2 * 2 * 2,
        ("bulk", "stores"): 2,
    }
    assert metrics_of(plan).keys() == METRICS.keys() | TMA_METRICS.keys()
    names = ",".join(f'"{name}"' for name in TMA_METRICS)
    told = parse_ncu(f'"ID",{names}\n"",{",".join(5 * [chr(34) * 2])}\n"0","65,536","n/a","16384","8","2"\n')
    assert ratios(told, counters) == {
        "bytes.global_to_shared": 65536 / (6 * tile), "bytes.shared_to_global": 1.0, "bulk.load_boxes": 1.0,
        "bulk.stores": 1.0,
    }  # fmt: skip
    older = get_family("gemm_sm80")
    assert metrics_of(older.plan(problem, device, older.default(problem, device))) == METRICS


def test_counts_of_pytest() -> None:
    assert counts_of("....\n3 passed, 2 skipped in 1.20s\n") == {"passed": 3, "skipped": 2}
    assert counts_of("1 failed, 3 passed, 1 error in 9s") == {"failed": 1, "passed": 3, "error": 1}
    assert counts_of("nothing") == {}


def test_wheels_are_those_of_our_dependencies(tmp_path: Path) -> None:
    names = {collect_wheels.name_of(one) for one in collect_wheels.requirements()}
    assert {"sqlalchemy", "optuna", "pytest", "nvidia-ml-py", "ml-dtypes", "urllib3"} <= names
    assert not names & collect_wheels.LEFT_OUT
    for name in ("numpy-2.4-cp311-x.whl", "psycopg_binary-3.2-x.whl", "rich-15.0-py3-none-any.whl"):
        (tmp_path / name).write_bytes(b"x")
    kept = [wheel.name for wheel in collect_wheels.prune(tmp_path)]
    assert kept == ["psycopg_binary-3.2-x.whl", "rich-15.0-py3-none-any.whl"]
