"""Does `rooftile tune` tune: with children of its own, beside a service, until Ctrl-C?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rooftile.device import local_cpu

from service.cli import tune_result
from service.store import jobs, trials
from service.store.database import Database
from service.store.enums import JobState
from service.store.transitions import TRIAL_OPEN

ROOFTILE = str(Path(sys.executable).with_name("rooftile"))
GEMM = ("gemm", "--m", "4", "--n", "64", "--k", "64", "--dtype", "f32")


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    return {**kept, "ROOFTILE_HOME": str(home)}


def _tree(home: Path) -> list[int]:
    mark = f"ROOFTILE_HOME={home}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_ctrl_c_cancels_keeps_the_best_and_leaves_nothing_running(tmp_path: Path) -> None:
    home = tmp_path / "h"
    process = subprocess.Popen(
        [ROOFTILE, "tune", *GEMM, "--trials", "5000", "--json"],
        env=_environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    database = Database(f"sqlite:///{home}/rooftile.db")
    deadline = time.monotonic() + 120
    measured: list[Any] = []
    while not measured:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
        if (home / "rooftile.db").exists():
            try:
                with database.read() as s:
                    measured = trials.listing(s, order="fastest", limit=1).rows  # type: ignore[assignment]
            except Exception:  # noqa: BLE001 - the tables are being made just now
                continue
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - started < 12
    assert process.returncode == 1
    document = json.loads(out)
    assert "Traceback" not in err
    assert document["state"] == "cancelled"
    (result,) = document["results"]
    assert result["best_us"] > 0
    assert result["schedule_line"].startswith("gemm_x86")
    assert _tree(home) == []
    with database.read() as s:
        job = jobs.get(s, document["job_id"])
        (problem,) = jobs.problems(s, document["job_id"])
        rows = trials.of_problem(s, problem.id)
        again = tune_result.collect(s, job) if job else None
    database.close()
    assert job is not None
    assert job.state is JobState.CANCELLED
    assert not [row for row in rows if row.state in TRIAL_OPEN]
    # The same answer as the table that a person sees.
    assert again is not None
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    tune_result.show(again, console)
    text = console.export_text()
    assert "gemm 4x64x64 f32 kn" in text
    assert "cancelled" in text
    assert again.results[0].schedule_line is not None
    assert again.results[0].schedule_line in text


def test_beside_a_service_it_submits_and_watches(tmp_path: Path) -> None:
    home = tmp_path / "h"
    serve = subprocess.Popen(
        [ROOFTILE, "serve", "--port", "0"], env=_environment(home), stdout=subprocess.PIPE, text=True
    )
    try:
        assert serve.stdout is not None
        url = serve.stdout.readline().split()[-1]
        done = subprocess.run(
            [ROOFTILE, "tune", *GEMM, "--trials", "3", "--json"],
            env=_environment(home), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        document = json.loads(done.stdout)
        before = {int(pid) for pid in _tree(home)}
        assert serve.pid in before  # it is still the one supervisor
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(15)
    assert f"`rooftile serve` (pid {serve.pid}) runs on this home and does the work" in done.stderr
    (result,) = document["results"]
    disturbed = result["reason"] == "race_failed"
    assert (done.returncode, document["state"]) == ((1, "failed") if disturbed else (0, "done"))
    assert document["served"] is True
    assert document["dashboard"] == f"{url}/jobs/{document['job_id']}"
    assert sum(result["trials"].values()) == 3
    assert result["device"] == local_cpu().key
    assert result["problem"]["schema"] == 1
    assert result["best_us"] > 0
    assert result["baseline_us"] > 0
    if result["disturbed"] or result["baseline_disturbed"]:
        assert result["ratio"] is None  # a ratio of disturbed times would be a made-up one
    else:
        assert result["ratio"] == pytest.approx(result["baseline_us"] / result["best_us"])
    assert result["gflops"] == pytest.approx(2 * 4 * 64 * 64 / result["best_us"] / 1e3)
    assert result["share"]["bound"] in ("compute", "memory")
    assert result["share"]["of"] > 0
    assert result["schedule"]["family"] == "gemm_x86"
    assert result["served"] in ((None,) if disturbed else ("trial", "baseline"))
    assert _tree(home) == []
