"""Is every bench one command with the same two options, and is its result file whole or not there?"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.common import environment, write

ROOT = Path(__file__).resolve().parents[2]
BENCHES = [path.stem for path in (ROOT / "bench").glob("*.py") if path.stem not in ("__init__", "common")]


@pytest.mark.parametrize("name", BENCHES)
def test_quick_and_json_are_there(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--quick" in done.stdout
    assert "--json FILE" in done.stdout


def test_the_file_has_figures_rows_and_the_environment(tmp_path: Path) -> None:
    target = tmp_path / "new" / "x.json"
    write(target, {"speed": 1.5}, [{"shape": [1, 2, 3]}], environment(policy="cold"))
    document = json.loads(target.read_text())
    assert document["figures"] == {"speed": 1.5}
    assert document["rows"] == [{"shape": [1, 2, 3]}]
    assert {"date", "device", "cores", "commit", "policy", "load_before"} <= document["environment"].keys()
    with pytest.raises(ValueError, match="JSON"):
        write(target, {"speed": math.nan}, [], {})
    assert json.loads(target.read_text()) == document
    assert list(target.parent.iterdir()) == [target]
