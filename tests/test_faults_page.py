"""Does docs/faults.md name tests that exist, one at least for every fault?"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| ([A-Z]{2}-\d{2}) \| (.+?) \| (.+?) \| (.+) \|$")
SECTIONS = ["Queues", "API and database", "Tuning and measuring", "Search"]


@cache
def _tests(file: str) -> frozenset[str]:
    """The test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_every_row_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    lines = [line for line in page.splitlines() if re.match(r"\| [A-Z]{2}-", line)]
    rows = [match.groups() for line in lines if (match := ROW.match(line))]
    assert len(rows) == len(lines)
    assert len({row[0] for row in rows}) == len(rows) == 98
    missing = []
    for name, _fault, _here, shown in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown)
        assert named, name
        assert len(named) == shown.count("`") // 2, name
        for file, test in named:
            if not (ROOT / file).is_file() or test not in _tests(file):
                missing.append(f"{name}: {file}::{test}")
    assert missing == []
