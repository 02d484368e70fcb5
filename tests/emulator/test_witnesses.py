"""Are kernels from outside, known to be right on silicon, right here and not accused?"""

from __future__ import annotations

from functools import cache

import pytest

from bench.emulation.hopper_witnesses import hopper_witnesses
from bench.emulation.witnesses import Witness, WitnessMissingError, run_witness, witnesses
from emulator import Order

# bf16 has 8 bits: the mean error of rounding a result is about 2^-9.
BOUND = 4e-3
WITNESSES = (*witnesses(), *hopper_witnesses())


@cache
def build(witness: Witness) -> str:
    """Its PTX, compiled once."""
    return witness.build()


@pytest.mark.parametrize("witness", WITNESSES, ids=lambda w: w.name)
def test_a_witness_is_right_and_unaccused(witness: Witness) -> None:
    try:
        ptx = build(witness)
    except WitnessMissingError as error:
        pytest.skip(str(error))
    assert witness.missing_opcodes(ptx) == []
    program = witness.program(ptx)
    for number, size in enumerate(witness.sizes):
        # Every order on one size: the bench has all of both.
        for order in (Order("late"), Order("early"), Order("random", 3))[: None if number == 0 else 1]:
            error, report = run_witness(witness, program, size, order, 0)
            assert report.clean, (size, str(order), report.faults[0].message)
            assert error < BOUND, (size, str(order), error)


@pytest.mark.parametrize("witness", WITNESSES, ids=lambda w: w.name)
@pytest.mark.parametrize("order", [Order("early"), Order("late")], ids=str)
def test_a_witness_without_its_waits_is_accused(witness: Witness, order: Order) -> None:
    """So that silence above means something. Without all of them: Triton's own overlap, and one may be
    spared."""
    try:
        ptx = build(witness)
    except WitnessMissingError as error:
        pytest.skip(str(error))
    for dropped in witness.waits:
        less = witness.without(ptx, dropped)
        assert dropped in ptx
        assert dropped not in less
        _, report = run_witness(witness, witness.program(less), witness.sizes[0], order, 0)
        assert not report.clean, (dropped, witness.name)
