"""Does docs/faults.md name tests that pytest collects, one at least for every fault?"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| ([A-Z]{2}-\d{2}) \| (.+?) \| (.+?) \| (.+) \|$")
SECTIONS = ["Queues", "API and database", "Tuning and measuring", "Search"]


def _collected(files: set[str]) -> set[tuple[str, str]]:
    """What pytest would run of these files: file and function."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    done = subprocess.run(
        [*command, "-o", "addopts=", *sorted(files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    found = re.findall(r"^(tests/[\w/]+\.py)::(?:\w+::)*(test_\w+)", done.stdout, re.MULTILINE)
    return set(found)


def _function(item: pytest.Item) -> str:
    return item.name.partition("[")[0]


def test_every_row_names_tests_that_are_run(request: pytest.FixtureRequest) -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    lines = [line for line in page.splitlines() if re.match(r"\| [A-Z]{2}-", line)]
    rows = [match.groups() for line in lines if (match := ROW.match(line))]
    assert len(rows) == len(lines)
    assert len({row[0] for row in rows}) == len(rows) == 98
    named_by_row = {}
    for name, _fault, _here, shown in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown)
        assert named, name
        assert len(named) == shown.count("`") // 2, name
        named_by_row[name] = named
    every = {one for named in named_by_row.values() for one in named}
    files = {file for file, _ in every}
    assert [file for file in sorted(files) if not (ROOT / file).is_file()] == []
    # A run of the whole suite has collected most of them already; of the others pytest is asked.
    collected = {(item.path.relative_to(ROOT).as_posix(), _function(item)) for item in request.session.items}
    if unseen := {file for file, _ in every - collected}:
        collected |= _collected(unseen)
    missing = [
        f"{name}: {file}::{test}"
        for name, named in named_by_row.items()
        for file, test in named
        if (file, test) not in collected
    ]
    assert missing == []
