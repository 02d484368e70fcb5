"""Is every pitfall of bench.emulator a legal schedule that fits its sizes, or refused by the rule it names?

The bench runs them all. Here each is looked at, and two quick ones are run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rooftile.plan import Launch

from bench.emulation.pitfalls import ARCH, PITFALLS
from bench.emulator import run_pitfall
from search_space.device import Device

DEVICE = Device.for_arch(ARCH)
LEGAL = [p for p in PITFALLS if p.refused is None]
QUICK = (
    "a box of the store by TMA larger than the tensor, bm = 64",
    "every path of a role gives or takes its registers, in turns",
)


def test_each_has_a_name_of_its_own() -> None:
    assert len({p.name for p in PITFALLS}) == len(PITFALLS)


def test_what_is_refused_is_refused_by_the_rule_named() -> None:
    refused = [p for p in PITFALLS if p.refused is not None]
    assert {p.name: p.refused for p in refused if p.refused not in p.refusals()} == {}
    assert {"store_tma", "tma", "choice", "shared_memory", "register_pool"} <= {p.refused for p in refused}
    assert not any(p.sizes for p in refused)


def test_what_is_run_is_legal_and_one_kernel_for_all_its_sizes() -> None:
    """In grid.x alone, with as much shared memory however deep k is."""
    for pitfall in LEGAL:
        family, big, schedule = pitfall.family(), pitfall.big(), pitfall.schedule()
        assert not family.supports(big, ARCH), pitfall.name
        assert family.check(big, DEVICE, schedule) == [], pitfall.name
        assert pitfall.sizes, pitfall.name
        build = family.build(big, DEVICE, schedule)
        for small in pitfall.small():
            assert family.build(small, DEVICE, schedule) == build, (pitfall.name, small.title())
            plan, names = family.plan(small, DEVICE, schedule), small.plan_names() | {"sm_count": 132}
            assert plan.check(names) == [], (pitfall.name, small.title())
        # Of no size but the count of tiles in x.
        for step in family.plan(big, DEVICE, schedule).steps:
            if isinstance(step, Launch):
                assert step.grid[1:] == (1, 1), pitfall.name
                assert isinstance(step.smem, int), pitfall.name


def test_every_size_is_in_rows_that_end_before_the_next_one() -> None:
    """What is written past the end of a row falls beside the result."""
    for small in (small for pitfall in LEGAL for small in pitfall.small()):
        names = small.plan_names()
        assert all(
            names[f"ld_{x}"] > {"m": small.m, "n": small.n, "k": small.k}[getattr(small.layout, x)[1]]
            for x in "abc"
        ), small.title()


@pytest.mark.parametrize("name", QUICK)
def test_quick_ones_pass(name: str, tmp_path: Path) -> None:
    (number,) = (i for i, pitfall in enumerate(PITFALLS) if pitfall.name == name)
    row = run_pitfall(number, tmp_path)
    assert row.passed, row.message
    assert dict(row.more)["runs"] > len(PITFALLS[number].sizes)
