"""Does the walk-through of docs/add-a-family.md work as it stands: its files, script, tests and fault?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "add-a-family.md"


def blocks() -> dict[str, str]:
    """File name -> its text, of the code blocks that name one."""
    found = re.findall(r"^```(?:cpp|python) (\S+)\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    return dict(found)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's own packages, with the example added by the document's own instructions."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("search_space", "service", "worker", "emulator", "kernels", "migrations"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml",):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "tests" / "support", root / "tests" / "support")
    for name, text in blocks().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    entry = re.search(r"^_MODULES\[.*?\n_OP_OF\[.*?$", DOCUMENT.read_text(), re.M)
    assert entry is not None
    registry = root / "search_space" / "registry.py"
    text = registry.read_text()
    at = text.index("\n\n@cache")
    registry.write_text(f"{text[:at]}\n\n{entry[0]}\n{text[at:]}")
    return root


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "ROOFTILE_HOME": str(checkout / "home")}
    return subprocess.run(
        [sys.executable, *command], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def test_the_script_shows_what_the_page_says(checkout: Path) -> None:
    done = run(checkout, "prove_rows.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed: True None") == 3
    assert "gemm_rows" in done.stdout.splitlines()[0]
    assert "why not f16: ['dtype: computes in f32 alone (dtype f16xf16xf16)']" in done.stdout
    assert "1024 threads at most (threads 2048, most 1024)" in done.stdout


def test_the_fault_that_the_page_plants_is_found(checkout: Path) -> None:
    kernel = checkout / "kernels" / "cuda" / "gemm" / "gemm_rows.cu"
    right = kernel.read_text()
    assert right.count("__syncthreads();") == 2
    first, second, rest = right.split("__syncthreads();")
    kernel.write_text(f"{first}__syncthreads();{second}{rest}")
    try:
        done = run(checkout, "prove_rows.py")
    finally:
        kernel.write_text(right)
    assert "passed: False race gemm_rows.cu:" in done.stdout, done.stdout + done.stderr


def test_its_tests_pass_and_its_mutations_are_caught(checkout: Path) -> None:
    # The script above has proven the starts already.
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not proven")
    done = run(checkout, *command, "tests/kernel/test_gemm_rows.py")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "6 passed, 3 deselected" in done.stdout


def test_its_code_keeps_the_rules_of_style(checkout: Path) -> None:
    files = [name for name in blocks() if name.endswith(".py")]
    done = run(checkout, "-m", "ruff", "check", *files)
    assert done.returncode == 0, done.stdout
