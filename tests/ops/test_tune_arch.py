"""Does `rooftile tune` for an arch end with a ranking, and does a killed emulation cost nothing?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.cli.tune_command import main as tune
from service.paths import nvrtc_library
from service.store import emulations, trials, workers
from service.store.database import Database
from service.store.enums import EmulationState, TrialState, WorkerKind
from service.store.errors import StoreError

ROOFTILE = str(Path(sys.executable).with_name("rooftile"))
GEMM = ("gemm", "--m", "64", "--n", "64", "--k", "64")


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    return {**kept, "ROOFTILE_HOME": str(home)}


def test_an_x86_arch_is_compiled_and_ranked(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOFTILE, "tune", *GEMM, "--dtype", "f32", "--arch", "x86-64-v3", "--trials", "2"],
        env=_environment(tmp_path / "h"), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "compiled, not yet timed" in done.stdout
    assert "gemm_x86" in done.stdout
    assert "emulat" not in done.stdout


def test_without_nvrtc_it_says_what_to_install_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia", None)  # no wheel of NVIDIA's can be imported
    if any(nvrtc_library(major) for major in (12, 13)):
        pytest.skip("the loader knows an NVRTC of the system")
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "h"))
    assert tune([*GEMM, "--dtype", "f16", "--arch", "sm_80"]) == 1
    told = capsys.readouterr().err
    assert "pip install -e '.[compile]'" in told
    assert told.startswith("rooftile: Nothing compiles for sm_80 here")
    assert not (tmp_path / "h").exists()


def test_a_gpu_arch_needs_no_c_compiler(tmp_path: Path) -> None:
    words = (*GEMM, "--dtype", "f16", "--arch", "sm_80", "--trials", "1", "--json")
    done = subprocess.run(
        [ROOFTILE, "tune", *words], env={**_environment(tmp_path / "h"), "CC": "/no/such/compiler"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "done"
    # A CPU's kernels do need one, and it is told before anything is started.
    words = (*GEMM, "--dtype", "f32", "--arch", "x86-64-v3")
    done = subprocess.run(
        [ROOFTILE, "tune", *words], env={**_environment(tmp_path / "x"), "CC": "/no/such/compiler"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "C compiler" in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("arch", "family", "kill"), [("sm_80", "gemm_sm80", True), ("sm_90a", "gemm_sm90", False)]
)
def test_a_gpu_arch_is_compiled_emulated_and_ranked(
    arch: str, family: str, kill: bool, tmp_path: Path
) -> None:
    """`kill`: the worker that emulates the first one, which is done again and counted once."""
    home = tmp_path / "h"
    process = subprocess.Popen(
        [ROOFTILE, "tune", *GEMM, "--dtype", "f16", "--arch", arch, "--trials", "2", "--json"],
        env=_environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    database = Database(f"sqlite:///{home}/rooftile.db")
    if kill:
        os.kill(_emulating(process, home, database), signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    document = json.loads(out)
    assert document["state"] == "done"
    assert document["message"] == "compiled and emulated, not yet timed"
    (result,) = document["results"]
    assert result["served"] is None
    assert [row["emulated"] for row in result["ranked"]] == ["right, run itself"] * 2
    assert family in {row["schedule_line"].split()[0] for row in result["ranked"]}
    assert result["ranked"][0]["predicted_us"] <= result["ranked"][1]["predicted_us"]
    with database.read() as s:
        rows = [trials.get(s, number) for number in (1, 2)]
        runs = [emulations.of_trial(s, number) for number in (1, 2)]
    database.close()
    assert {row.state for row in rows if row} == {TrialState.RANKED}
    assert max(run.attempt for run in runs if run) == (2 if kill else 1)


def _emulating(process: subprocess.Popen[str], home: Path, database: Database) -> int:
    """The process that emulates the first trial, once it does."""
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
        if not (home / "rooftile.db").exists():
            continue
        try:
            with database.read() as s:
                run = emulations.of_trial(s, 1)
                if run is not None and run.state is EmulationState.RUNNING:
                    return next(row.pid for row in workers.alive(s, WorkerKind.EMULATE))
        except StoreError:
            continue  # the tables are being made just now
