"""Are our own CUDA kernels right in the emulator, and is a mistake in them seen? A share of bench.emulator.

The bench runs 44 schedules of each family and every planted mistake; here a few of each, the same ones every
time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.emulator import FAMILIES, run_case, run_mutation, sample
from bench.emulator_cases import EmulatorCase, cases
from bench.mutations import CLASSES, Mutation, mutations
from service.paths import kernels_dir

CASES = 4
PLANTED = 12


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator-home")


@pytest.mark.parametrize("family", FAMILIES)
def test_schedules_are_right_in_every_order(family: str, home: Path) -> None:
    chosen: list[EmulatorCase] = cases(family, CASES)
    assert len(chosen) == CASES
    for number, case in enumerate(chosen):
        row = run_case(case, number, home)
        assert row.passed, f"{row.name}: {row.message}"


@pytest.mark.parametrize("mutation", sample(list(mutations()), PLANTED), ids=lambda m: f"{m.kind}, {m.name}")
def test_a_planted_mistake_is_caught_with_its_place(mutation: Mutation, home: Path) -> None:
    row = run_mutation(mutation, home)
    assert row.passed, row.name
    assert row.message, row.name


def test_every_mutation_applies_to_the_sources_of_today(tmp_path: Path) -> None:
    """A kernel that moved on would make a mutation empty, and the bench would find it weeks later."""
    for number, mutation in enumerate(mutations()):
        root = mutation.sources(kernels_dir(), tmp_path / str(number))
        changed = [
            edit.file
            for edit in mutation.edits
            if (root / "cuda" / edit.file).read_text() != (kernels_dir() / "cuda" / edit.file).read_text()
        ]
        assert len(changed) == len(mutation.edits), mutation.name


def test_each_class_of_mistakes_is_planted_in_each_family() -> None:
    """sm_70 has no asynchronous copies: nothing to commit, no groups to count."""
    for family in FAMILIES:
        for kind in CLASSES:
            if family == "gemm_sm70" and kind in ("dropped commit", "wrong group count"):
                continue
            planted = [m for m in mutations(family) if m.kind == kind and m.equivalent is None]
            assert len(planted) >= 3, f"{family}: {kind}"
