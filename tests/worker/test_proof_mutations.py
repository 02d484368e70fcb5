"""Does the proof see mistakes that large problems alone reach? One of each class in each family; the emulator
bench plants all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.emulator import run_mutation
from bench.mutations import Mutation, mutations

CHOSEN = {
    "gemm_sm70": ("bands of two begin one apart", "rows of k", "batch entries of C by those of out"),
    "gemm_sm80": (
        "batch entries behind the second", "rows of a copy", "out by that of C",
        "a scaled sum of integers is cut off", "NaN is lost in an activation",
    ),
    "gemm_sm90": ("the second turn of Hilbert's curve", "address of C", "alpha 0 multiplies"),
}  # fmt: skip


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proof-home")


def chosen() -> list[Mutation]:
    return [
        next(m for m in mutations(family) if m.name == name) for family, x in CHOSEN.items() for name in x
    ]


@pytest.mark.parametrize("mutation", chosen(), ids=lambda m: f"{m.family}, {m.kind}: {m.name}")
def test_it_is_caught(mutation: Mutation, home: Path) -> None:
    assert mutation.kind in ("wrong tile", "32-bit offset", "wrong pitch", "wrong number")
    row = run_mutation(mutation, home)
    assert row.passed, row.message
