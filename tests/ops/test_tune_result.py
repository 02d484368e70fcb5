"""Does `rooftile tune` say at its end why a problem has no answer? Is a table in a file whole?"""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from service.cli import tables
from service.cli.tune_result import JobResult, ProblemResult, Ranked, show

WHY = "All 2 races were disturbed (other work on the device disturbed trial-6 and baseline)."


def _problem(**more: Any) -> ProblemResult:
    empty = dict.fromkeys(ProblemResult.__dataclass_fields__)
    given = {
        "title": "gemm 4x64x64 f32 kn", "state": "failed", "reason": "race_failed", "message": WHY,
        "disturbed": False, "baseline_disturbed": False, "trials": {"measured": 8}, "examples": {},
    }  # fmt: skip
    return ProblemResult(**{**empty, **given, **more})


def _shown(row: ProblemResult) -> str:
    out = io.StringIO()
    show(JobResult(1, "done", None, "", 1.0, (row,)), Console(file=out, width=80))
    return out.getvalue()


def test_a_problem_without_an_answer_says_why_in_one_line() -> None:
    shown = _shown(_problem())
    assert f"  ended     failed, race_failed: {WHY}\n" in shown
    assert "wait until the machine is idle and run this again, or give it more time (--seconds)." in shown
    assert "idle" not in _shown(_problem(message="The race could not be run to its end: hang."))


def test_a_problem_with_an_answer_says_only_what_ended_its_search() -> None:
    shown = _shown(_problem(state="done", reason="budget_seconds", message="Release 1: 1.37 times as fast."))
    assert "  ended     done, budget_seconds\n" in shown


def test_without_a_device_the_ranking_says_what_the_emulator_says_and_that_nothing_was_timed() -> None:
    ranked = (
        Ranked(7, 3, 12.5, "right, run itself", "gemm_sm80 tile bm=64"),
        Ranked(5, 1, 13.0, "right, by trial 7", "gemm_sm80 tile bm=128"),
    )
    message = "compiled and emulated, not yet timed"
    row = _problem(state="done", reason="budget_trials", message=message, ranked=ranked)
    lines = _shown(row).splitlines()
    assert lines[0] == "gemm 4x64x64 f32 kn: compiled and emulated, not yet timed"
    assert lines[1] == "  rank  trial   expected  in the emulator"
    assert lines[2:6] == [
        "     1      7    12.5 us  right, run itself",
        "        gemm_sm80 tile bm=64",
        "     2      5    13.0 us  right, by trial 7",
        "        gemm_sm80 tile bm=128",
    ]
    assert lines[-1] == "expected: by the cost model of the family; nothing was timed"


def test_the_winner_and_an_example_of_each_failure_are_named_by_their_ids() -> None:
    trials = {"measured": 8, "failed: race": 3, "culled": 1}
    row = _problem(trials=trials, examples={"failed: race": 97}, trial_id=95, schedule_line="gemm_x86 tile")
    shown = _shown(row)
    assert "  schedule  trial 95, gemm_x86 tile\n" in shown
    assert "  trials    12: 1 culled, 3 failed: race, e.g. trial 97, 8 measured\n" in shown


def test_a_table_in_a_file_is_not_cut_to_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    tables.table_console().print("x" * 120)
    assert capsys.readouterr().out == "x" * 120 + "\n"
