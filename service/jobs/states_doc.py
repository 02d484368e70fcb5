"""What do the transition tables look like as a page? `python -m service.jobs.states_doc` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from service.paths import source_root
from service.store.enums import JobProblemReason, JobReason, TrialReason, Word
from service.store.transitions import INITIAL, TABLES, Table

_TITLES = {
    "trial": ("Trial", "One schedule, tried for one problem of a job."),
    "job": ("Job", "What a person asked for: one or many problems."),
    "job_problem": ("Job problem", "One problem of a job, with its own share of the budget and its own end."),
    "race": ("Race", "The finalists of one problem against each other, what is served, and the Baseline."),
    "emulation": ("Emulation", "One schedule, run in the emulator, whose outcome is remembered."),
    "release": ("Release", "A winner that is, was or may be served."),
}
_REASONS: dict[str, type[Word]] = {
    "trial": TrialReason,
    "job": JobReason,
    "job_problem": JobProblemReason,
}


def render() -> str:
    """The page, from the tables alone."""
    parts = [
        "# States and moves",
        "",
        "Written by `python -m service.jobs.states_doc` from `service/store/transitions.py`; a test keeps",
        "the two equal. Every move is checked against these tables, is a compare-and-swap on the state",
        "before it, and writes an event. A state in **bold** is where things begin; one without a successor",
        "is an end.",
    ]
    for name, table in TABLES.items():
        title, sentence = _TITLES[name]
        parts += ["", f"## {title}", "", sentence, "", *_diagram(table), "", *_rows(table, INITIAL[name])]
        if name in _REASONS:
            parts += ["", f"Reasons of a {title.lower()}:", "", *_reasons(_REASONS[name])]
    return "\n".join(parts) + "\n"


def _rows(table: Table, first: Word) -> Iterable[str]:
    yield "| state | meaning | may become |"
    yield "|---|---|---|"
    for state, after in table.items():
        shown = f"**{state}**" if state is first else str(state)
        yield f"| {shown} | {state.doc} | {', '.join(map(str, after)) or '(end)'} |"


def _diagram(table: Table) -> Iterable[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    for state, after in table.items():
        for to in after:
            yield f"    {state} --> {to}"
    yield "```"


def _reasons(words: type[Word]) -> Iterable[str]:
    yield "| reason | meaning |"
    yield "|---|---|"
    for word in words:
        yield f"| {word} | {word.doc} |"


def main() -> int:
    """Write the page into the source tree."""
    root = source_root()
    if root is None:
        print("rooftile: docs/states.md is written in a checkout only.", file=sys.stderr)
        return 1
    (root / "docs" / "states.md").write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
