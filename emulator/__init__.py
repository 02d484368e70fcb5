"""Runs PTX on the CPU, and says what is wrong with it that numbers may not show.

    program = Program.from_ptx(text)
    report = run_plan(program, plan, sizes, {"a": a, "b": b, "out": out}, {"alpha": 1.0, "beta": 0.0})

ptx/       text -> Module
arith/     what instructions compute, on arrays of lanes
machine/   threads, memory, asynchronous copies, barriers; decode/ turns instructions into steps
checks/    what happens before what; who touched each byte last
run.py     a LaunchPlan's steps; kernel.py one entry; report.py the outcome; counters.py what explains speed
"""

from emulator.errors import EmulatorError, PtxError
from emulator.report import Fault, FaultKind, Limits, Order, Region, Report
from emulator.run import Operand, Program, run_plan

__all__ = [
    "EmulatorError",
    "Fault",
    "FaultKind",
    "Limits",
    "Operand",
    "Order",
    "Program",
    "PtxError",
    "Region",
    "Report",
    "run_plan",
]
