"""Are our own CUDA kernels right in the emulator, and is a mistake in them seen? A share of bench.emulator.

The bench runs 44 schedules of each family (70 of gemm_sm90) and every planted mistake; here a few of each,
the same ones every time.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.emulation.cases import EmulatorCase, design
from bench.emulator import FAMILIES, figures_of, run_case, run_mutation, sample
from bench.mutations import CLASSES, Mutation, mutations
from service.paths import kernels_dir

CASES = {"gemm_sm80": 2, "gemm_sm70": 2, "gemm_sm90": 2}
SEEDS = {"gemm_sm80": 0, "gemm_sm70": 2, "gemm_sm90": 0}
"""Of designs whose first tiles are small, and so quick to prove."""
PLANTED = 12


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator-home")


# A case of Hopper's takes as long as four of the others: clusters of up to eight blocks, and roles.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_schedules_are_right_in_every_order(family: str, home: Path) -> None:
    chosen: list[EmulatorCase] = design(family, CASES[family], SEEDS[family]).cases
    assert len(chosen) == CASES[family]
    proved = 0
    for number, case in enumerate(chosen):
        row = run_case(case, number, home)
        if dict(row.more)["compiled"]:  # a few legal schedules spill, and are refused for that
            assert row.passed, f"{row.name}: {row.message}"
            proved += 1
    assert proved >= CASES[family] - 1


@pytest.mark.parametrize("mutation", sample(list(mutations()), PLANTED), ids=lambda m: f"{m.kind}, {m.name}")
def test_a_planted_mistake_is_caught_with_its_place(mutation: Mutation, home: Path) -> None:
    row = run_mutation(mutation, home)
    assert row.passed, row.name
    how = dict(row.more)["caught_by"]
    # An accusation names the line, or what nobody wrote; wrong numbers the element, its tile and the sizes.
    place = (
        r"\.cuh?:\d+.*(warp \d|bytes of|of the \d+ bytes)|bytes of out were not written, the first is"
        if how == "accusation"
        else r"at \[.*\(tile \d+, \d+"
    )
    assert re.search(place, row.message), row.message


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
    for family in FAMILIES:
        for kind in CLASSES[family]:
            planted = [m for m in mutations(family) if m.kind == kind and m.equivalent is None]
            assert len(planted) >= 3, f"{family}: {kind}"


def test_every_count_of_steps_is_among_the_sizes() -> None:
    for family in FAMILIES:
        for case in design(family, CASES[family], seed=5).cases:
            bk = case.schedule.integer("bk")
            stages = case.schedule.integer("stages")
            steps = {-(-p.k // bk) for p in case.small()}
            assert steps >= set(range(stages + 3)), case.schedule.one_line()


def test_figures_tell_what_was_caught_and_what_was_not(home: Path) -> None:
    caught = run_mutation(next(m for m in mutations() if m.kind == "dropped wait"), home)
    innocent = run_mutation(next(m for m in mutations() if m.equivalent), home)
    missed = replace(
        caught, passed=False, more=tuple((k, "" if k == "caught_by" else v) for k, v in caught.more)
    )
    alarmed = replace(innocent, passed=False)
    found = figures_of([caught, innocent, missed, alarmed])
    assert (found["planted"], found["caught"], found["caught_by_accusation"]) == (2, 1, 1)
    assert (found["planted_distinct"], found["false_alarms"], found["schedules_wrong"]) == (1, 1, 0)
