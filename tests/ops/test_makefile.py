"""Does `make` say in one sentence what a machine lacks, and do its stamps save work?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from service.jobs.request import JobRequest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout without an environment."""
    (tmp_path / "client").mkdir()
    for name in ("Makefile", "pyproject.toml", "client/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _python(tree: Path, *, version: str = "3.11", ensurepip: bool = True) -> Path:
    """An interpreter that answers the Makefile's questions and makes environments of fakes."""
    fake = tree / "fake-python"
    fake.write_text(
        f"""#!/bin/sh
case "$*" in
  --version) echo "Python {version}.1" ;;
  *"version_info <"*) test {version.split(".")[1]} -ge 11 ;;
  *"import ensurepip"*) {"true" if ensurepip else "false"} ;;
  *version_info*) echo "python{version}-venv" ;;
  "-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"
              printf '#!/bin/sh\\necho tuned "$@"\\n' > "$3/bin/rooftile"
              chmod +x "$3/bin/rooftile" ;;
  "-m pip"*) echo "$*" >> "{tree}/pip.log" ;;
esac
"""
    )
    fake.chmod(0o755)
    return fake


def _make(tree: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    if path is not None:
        environment["PATH"] = path
    make = shutil.which("make")
    assert make is not None
    return subprocess.run(
        [make, *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


def test_an_old_python_is_one_sentence(tree: Path) -> None:
    done = _make(tree, "tune", f"PYTHON={_python(tree, version='3.9')}")
    assert done.returncode != 0
    assert "Python 3.9.1 is too old: Rooftile needs 3.11 or newer" in done.stderr
    assert not (tree / ".venv").exists()


def test_no_python_is_one_sentence(tree: Path) -> None:
    done = _make(tree, "tune", "PYTHON=python-of-nowhere")
    assert done.returncode != 0
    assert "python-of-nowhere was not found" in done.stderr


def test_a_python_without_venv_names_the_package(tree: Path) -> None:
    done = _make(tree, "tune", f"PYTHON={_python(tree, ensurepip=False)}")
    assert done.returncode != 0
    assert "apt install python3.11-venv" in done.stderr


def test_set_up_happens_once(tree: Path) -> None:
    python = f"PYTHON={_python(tree)}"
    first = _make(tree, "tune", python)
    assert first.returncode == 0, first.stderr
    assert "tuned tune --spec bench/specs/make_tune.json" in first.stdout
    installs = (tree / "pip.log").read_text().splitlines()
    assert len(installs) == 1
    assert "install -e client -e ." in installs[0]
    again = _make(tree, "tune", python)
    assert "tuned tune" in again.stdout
    assert len((tree / "pip.log").read_text().splitlines()) == 1
    os.utime(tree / "pyproject.toml")
    _make(tree, "tune", python)
    assert len((tree / "pip.log").read_text().splitlines()) == 2


def test_zig_comes_only_where_there_is_no_compiler(tree: Path) -> None:
    tools = tree / "tools"
    tools.mkdir()
    for name in ("sh", "mkdir", "cp", "chmod", "touch", "printf", "test", "sed"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = _make(tree, "tune", f"PYTHON={_python(tree)}", path=str(tools))
    assert done.returncode == 0, done.stderr
    assert ".[zig]" in (tree / "pip.log").read_text()
    assert "No C compiler" in done.stdout


def test_the_main_job_is_a_good_request() -> None:
    body = json.loads((ROOT / "bench" / "specs" / "make_tune.json").read_text())
    request = JobRequest.parse(body)
    shapes = {(row.problem.m, row.problem.n, row.problem.k) for row in request.problems}
    assert {(4, 4096, 4096), (8, 4096, 4096), (16, 4096, 4096), (1024, 1024, 1024)} <= shapes
    assert request.budget.seconds is not None
    assert request.budget.seconds < 180
