"""Is docs/states.md what the tables say?"""

from __future__ import annotations

from service.jobs.states_doc import render
from service.paths import source_root
from service.store.transitions import TABLES


def test_the_page_is_rendered_from_the_tables() -> None:
    root = source_root()
    assert root is not None
    page = (root / "docs" / "states.md").read_text(encoding="utf-8")
    assert page == render(), "run python -m service.jobs.states_doc"


def test_every_state_is_explained() -> None:
    text = render()
    for table in TABLES.values():
        for state, after in table.items():
            assert f"| {state.doc} |" in text
            assert set(after) <= set(table)
