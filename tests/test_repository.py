"""Does the repository keep its own rules: imports, what `import rooftile` loads, what the wheels hold?"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_imports_point_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_rooftile_uses_the_standard_library_only() -> None:
    code = (
        "import sys, rooftile\n"
        "std = sys.stdlib_module_names\n"
        "print([m for m in sys.modules if m.split('.')[0] not in std"
        " and m.split('.')[0] not in ('rooftile', '__main__') and not m.startswith('_')])"
    )
    # -S: no site-packages hooks of other projects; the path of the client alone.
    out = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(ROOT / "client" / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.strip() == "[]"


def test_kernels_hold_no_python() -> None:
    kinds = {path.suffix for path in (ROOT / "kernels").rglob("*") if path.is_file()}
    assert kinds <= {".c", ".h", ".cu", ".cuh"}, kinds


def test_optuna_is_named_only_in_the_search() -> None:
    naming = [
        path.relative_to(ROOT).as_posix()
        for folder in ("client", "search_space", "service", "worker")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*(import|from) optuna", path.read_text(), re.MULTILINE)
    ]
    assert naming, "the search uses Optuna"
    assert all(name.startswith("service/search/") for name in naming), naming


def test_wheels_hold_one_name_each_and_the_data(tmp_path: Path) -> None:
    """The client brings one top-level name; the server carries kernels and migrations in a package."""
    for project in (ROOT / "client", ROOT):
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, project],
            check=True,
            capture_output=True,
        )
    client = zipfile.ZipFile(next(tmp_path.glob("rooftile-0*.whl"))).namelist()
    assert {name.split("/")[0].split("-")[0] for name in client} == {"rooftile"}
    server = zipfile.ZipFile(next(tmp_path.glob("rooftile_server*.whl"))).namelist()
    tops = {name.split("/")[0] for name in server if ".dist-info" not in name}
    assert tops == {"service", "worker", "search_space", "emulator"}
    for wanted in ("service/_data/kernels/x86/pool.c", "service/_data/migrations/env.py"):
        assert wanted in server, wanted
    assert any(name.startswith("service/web/templates/") for name in server)
    assert any(name.startswith("service/web/static/") for name in server)


def test_documents_name_files_that_are_there() -> None:
    """A path in backticks, as `docs/glossary.md` or `kernels/x86/gemm*.c`; a folder ends in a slash."""
    documents = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    tops = {path.name for path in ROOT.iterdir()}
    missing = []
    for document in documents:
        for named in re.findall(r"`([\w.*-]+/[\w./*-]*?)(?::[^`]*)?`", document.read_text()):
            if named.split("/")[0] in tops and not any(ROOT.glob(named)):
                missing.append(f"{document.name}: {named}")
    assert not missing, missing
