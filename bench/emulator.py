"""What does the emulator find, what does it acquit, and how fast is it?

    python -m bench.emulator [--quick] [--json FILE] [--cases N]

Cases: at least 44 schedules of each CUDA family (70 of gemm_sm90) by pairwise design
(bench/emulation/cases.py), each on many small sizes, copies as early and as late as can be, a random order on
one of them; the answer against float64.
Pitfalls: where others' kernels went wrong (bench/emulation/pitfalls.py), each by name.
Witnesses: kernels from outside that are right on silicon (bench/emulation/witnesses.py). Mutations: mistakes
planted in our own kernels (bench/mutations); each must be accused, and those that leave the numbers right in
program order are counted apart, since only the race, order and deadlock checks can see them. Speed: one
128x128x32 four-stage bf16 GEMM of 256x512x320 on one core. Exit 0 when it measured, 1 when it could not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftile.problem import Gemm

from bench.common import BenchError, bench_lock, environment, say, write
from bench.emulation.cases import Design, EmulatorCase, design
from bench.emulation.hopper_witnesses import hopper_witnesses, slow_witnesses
from bench.emulation.pitfalls import ARCH as PITFALL_ARCH
from bench.emulation.pitfalls import PITFALLS, Pitfall
from bench.emulation.witnesses import Witness, WitnessMissingError, run_witness, witnesses
from bench.mutations import CLASSES, VISIBLE, Mutation, mutations
from bench.peers.cutlass_gemm import CutlassMissingError
from bench.peers.cutlass_sm90 import check_tools
from emulator import Order
from search_space.device import Device
from search_space.registry import get_family
from search_space.schedule import Schedule, Value
from service.paths import kernels_dir
from service.store.enums import TrialReason
from worker.compile import compile_kernel
from worker.errors import CompileFailure, CompilerMissingError
from worker.verify.emulated import EARLY, LATE, EmulatedVerdict, UndecidedError, prove

DESIGNS = {"gemm_sm80": (44, True), "gemm_sm70": (44, True), "gemm_sm90": (70, False)}
"""family -> (schedules at least, whether more are added until every pair of values that is legal occurs). A
schedule of gemm_sm90 takes as long as four others: all its pairs would not fit into 40 minutes."""
FAMILIES = tuple(DESIGNS)
PLAIN = {"gemm_sm80": ("sm_80", "bf16"), "gemm_sm70": ("sm_70", "f16"), "gemm_sm90": ("sm_90a", "bf16")}
# bf16 has 8 bits: rounding a result is off by about 2^-9 in the mean.
WITNESS_BOUND = 4e-3
_BIG = 4096


@dataclass(frozen=True)
class Row:
    """One line of the result."""

    kind: str
    """case, pitfall, witness or mutation."""
    name: str
    passed: bool
    seconds: float
    message: str = ""
    more: tuple[tuple[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "kind": self.kind, "name": self.name, "passed": self.passed, "seconds": round(self.seconds, 2),
            "message": self.message, **dict(self.more),
        }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 when it measured, whatever the figures say."""
    parser = argparse.ArgumentParser(prog="python -m bench.emulator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sample of everything, under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--cases", type=int, default=None, help="schedules of each family (default 44, gemm_sm90 70; quick 5)"
    )
    args = parser.parse_args(argv)
    counts = {family: args.cases or (5 if args.quick else most) for family, (most, _) in DESIGNS.items()}
    try:
        with bench_lock():
            env = environment(quick=args.quick, cases_per_family=counts)
            started = time.monotonic()
            rows, speed, designs = measure(counts, quick=args.quick)
            env["seconds"] = round(time.monotonic() - started, 1)
    except (BenchError, CompilerMissingError) as error:
        print(f"bench.emulator: {error}", file=sys.stderr)
        return 1
    figures = figures_of(rows) | designs | speed
    write(args.json, figures, [row.to_json() for row in rows], env)
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(
    counts: Mapping[str, int], *, quick: bool
) -> tuple[list[Row], dict[str, float], dict[str, float | None]]:
    """All rows, the figures of speed (taken first, while nothing else runs), and those of the design."""
    with tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder:
        home = Path(folder)
        speed = reference_speed(home, repeats=2 if quick else 5)
        rate = speed["instructions_per_s"]
        say(f"reference GEMM {speed['reference_gemm_s']:.2f} s, {rate:.0f} instructions/s")
        planted = list(mutations())
        testimony = list(range(len(all_witnesses())))
        if quick:
            planted, testimony = sample(planted, 18), testimony[1:2]
        for number in testimony:
            _probe(all_witnesses()[number])
        work: list[Task] = [(run_testimony, (i, quick)) for i in testimony]
        work += [(run_pitfall, (i, home)) for i in range(len(PITFALLS))[:: 5 if quick else 1]]
        work += [(run_mutation, (m, home)) for m in planted]
        makers = {family: (design_of, (family, counts[family], quick)) for family in FAMILIES}
        designs: dict[str, float | None] = {}
        with _pool() as pool:
            # What takes longest first. The designs take a core a minute, and so are made beside other work.
            made = {
                family: pool.submit(function, *arguments) for family, (function, arguments) in makers.items()
            }
            waiting = [pool.submit(function, *arguments) for function, arguments in work]
            for family, future in made.items():
                drawn = future.result()
                if len(drawn.cases) < counts[family]:
                    pool.shutdown(cancel_futures=True)
                    raise BenchError(
                        f"{family}: only {len(drawn.cases)} legal cases were found, not {counts[family]}"
                    )
                designs |= {f"{family}_pairs": drawn.pairs, f"{family}_pairs_covered": drawn.covered}
                designs[f"{family}_pairs_refused"] = drawn.refused if drawn.refused >= 0 else None
                waiting += [pool.submit(run_case, case, i, home) for i, case in enumerate(drawn.cases)]
            return list(_told(pool, waiting)), speed, designs


Task = tuple[Callable[..., Row], tuple[Any, ...]]


def design_of(family: str, count: int, quick: bool) -> Design:
    """The cases of a family."""
    return design(family, count, complete=DESIGNS[family][1] and not quick)


def all_witnesses() -> tuple[Witness, ...]:
    """The quick ones first; those that nvcc takes minutes for last."""
    return (*witnesses(), *hopper_witnesses(), *slow_witnesses())


def _probe(witness: Witness) -> None:
    """A peer that is missing is told now, not when its turn comes."""
    try:
        if witness.name in {slow.name for slow in slow_witnesses()}:
            check_tools()  # to build it takes minutes
        else:
            witness.build()
    except (WitnessMissingError, CutlassMissingError) as error:
        raise BenchError(f"{witness.name}: {error}") from None


def sample(planted: list[Mutation], count: int) -> list[Mutation]:
    """Some of each class and family, the same every time."""
    found: list[Mutation] = []
    for turn in range(len(planted)):
        for family in FAMILIES:
            for kind in CLASSES[family][turn % 2 :: 2]:
                mine = [m for m in planted if m.kind == kind and m.family == family and not m.equivalent]
                if turn // 2 < len(mine) and mine[turn // 2] not in found and len(found) < count:
                    found.append(mine[turn // 2])
    return found


@contextmanager
def _pool() -> Iterator[ProcessPoolExecutor]:
    """A process for each core, each with one thread."""
    saved = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
            yield pool
    finally:
        for name, value in saved.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _told(pool: ProcessPoolExecutor, waiting: Sequence[Future[Row]]) -> Iterator[Row]:
    """Each row as it is done; the first that could not be made ends all."""
    for future in as_completed(waiting):
        try:
            row = future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        word = "ok  " if row.passed else "NO  "
        say(f"{word} {row.kind} {row.name} ({row.seconds:.1f} s) {row.message[:150]}")
        yield row


_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


# -- one row each
# ------------------------------------------------------------------------------------------------


def run_case(case: EmulatorCase, number: int, home: Path) -> Row:
    """Prove one schedule on all its small sizes."""
    started = time.monotonic()
    family, device = get_family(case.family), Device.for_arch(case.arch)
    name = f"{case.family} {case.arch} {case.problem.title()} {case.schedule.one_line()}"
    more: tuple[tuple[str, Any], ...]
    more = (("family", case.family), ("arch", case.arch), ("problem", case.problem.to_json()),
            ("schedule", case.schedule.to_json()))  # fmt: skip
    try:
        built = compile_kernel(family.build(case.problem, device, case.schedule), home=home)
    except CompileFailure as failure:
        text = f"not compiled: {failure.reason}: {failure.message}"
        return Row("case", name, False, time.monotonic() - started, text, (*more, ("compiled", False)))
    small = case.small()
    assert built.ptx is not None
    try:
        verdict = prove(
            built.ptx, family, case.problem, device, case.schedule, problems=small, orders=(EARLY, LATE),
            extra=(Order("random", number + 1), Order("random", number + 1001)), seed=number,
        )  # fmt: skip
        passed, message, checks, blamed = verdict.passed, told(verdict), verdict.checks, accused(verdict)
    except UndecidedError as error:
        passed, message, checks, blamed = False, str(error.evidence.get("message", error)), (), 0
    counted = Counter(str(check["order"]).partition(":")[0] for check in checks)
    more = (*more, ("compiled", True), ("problems", len(small)), ("runs", dict(counted)), ("accused", blamed))
    return Row("case", name, passed, time.monotonic() - started, message, more)


def run_pitfall(number: int, home: Path) -> Row:
    """Where others went wrong: right at every size, or refused by the rule that is meant."""
    started = time.monotonic()
    pitfall: Pitfall = PITFALLS[number]
    if pitfall.refused is not None:
        rules = pitfall.refusals()
        text = f"refused by {', '.join(sorted(rules)) or 'nothing'}"
        return Row("pitfall", pitfall.name, pitfall.refused in rules, time.monotonic() - started, text)
    family, device, schedule = pitfall.family(), Device.for_arch(PITFALL_ARCH), pitfall.schedule()
    problem = pitfall.big()
    if illegal := family.check(problem, device, schedule):
        raise BenchError(f"{pitfall.name}: its schedule is not legal: {illegal[0]}")
    built = compile_kernel(family.build(problem, device, schedule), home=home)
    assert built.ptx is not None
    extra = tuple(Order("random", seed) for seed in range(1, 1 + pitfall.repeats))
    verdict = prove(
        built.ptx, family, problem, device, schedule, problems=pitfall.small(), orders=(EARLY, LATE),
        extra=extra, seed=number,
    )  # fmt: skip
    more = (("family", family.name), ("runs", len(verdict.checks)), ("accused", accused(verdict)))
    return Row("pitfall", pitfall.name, verdict.passed, time.monotonic() - started, told(verdict), more)


def run_testimony(number: int, quick: bool) -> Row:
    """A witness on its sizes, in every order."""
    started = time.monotonic()
    witness = all_witnesses()[number]
    try:
        ptx = witness.build()
    except WitnessMissingError as error:
        raise BenchError(f"{witness.name}: {error}") from None
    if missing := witness.missing_opcodes(ptx):
        return Row(
            "witness", witness.name, False, time.monotonic() - started, f"it has no {', '.join(missing)}"
        )
    program = witness.program(ptx)
    blamed, wrong = 0, 0
    text = ""
    for size in witness.sizes:
        for order in (
            (EARLY, LATE) if quick else (EARLY, LATE, Order("ahead"), Order("behind"), Order("random", 1))
        ):
            error_, report = run_witness(witness, program, size, order, 0)
            blamed += len(report.faults)
            wrong += not error_ < WITNESS_BOUND
            if report.faults:
                text = text or report.faults[0].message
    more = (
        ("arch", _target_of(ptx)),
        ("accused", blamed),
        ("wrong", wrong),
        ("sizes", [list(s) for s in witness.sizes]),
    )
    return Row("witness", witness.name, not blamed and not wrong, time.monotonic() - started, text, more)


def _target_of(ptx: str) -> str:
    return ptx.partition(".target")[2].split(",")[0].split()[0]


def run_mutation(mutation: Mutation, home: Path) -> Row:
    """`passed`: it was caught, or, for one that changes nothing, acquitted."""
    started = time.monotonic()
    arch, dtype = PLAIN[mutation.family]
    family, device = get_family(mutation.family), Device.for_arch(arch)
    problem = Gemm(_BIG, _BIG, _BIG, **({"dtype": dtype} | dict(mutation.problem)))
    schedule = family.default(problem, device).replace(**mutation.values)
    name = f"{mutation.family} {mutation.kind}: {mutation.name}"
    more: tuple[tuple[str, Any], ...] = (("class", mutation.kind), ("family", mutation.family),
                                         ("equivalent", mutation.equivalent),
                                         ("edits", repr(mutation.edits)))  # fmt: skip
    if illegal := family.check(problem, device, schedule):
        raise BenchError(f"{name}: its schedule is not legal: {illegal[0]}")
    with tempfile.TemporaryDirectory(dir=home) as folder:
        root = mutation.sources(kernels_dir(), Path(folder))
        try:
            built = compile_kernel(family.build(problem, device, schedule), home=home, root=root)
        except CompileFailure as failure:
            raise BenchError(f"{name}: it does not compile: {failure.message}") from None
    assert built.ptx is not None
    how, message, quiet = judge(built.ptx, problem, schedule, mutation.family, arch)
    passed = bool(how) if mutation.equivalent is None else not how
    return Row("mutation", name, passed, time.monotonic() - started, message,
               (*more, ("right_in_program_order", quiet), ("caught_by", how)))  # fmt: skip


def judge(
    ptx: bytes | str, problem: Gemm, schedule: Schedule, family_name: str, arch: str
) -> tuple[str, str, bool]:
    """(how it was caught: `accusation`, `numbers`, `limit` or nothing; the message, which names the place;
    whether the numbers alone are right in program order). BenchError where the emulator could not say."""
    family, device = get_family(family_name), Device.for_arch(arch)
    try:
        verdict = prove(ptx, family, problem, device, schedule, orders=(EARLY, LATE))
    except UndecidedError as error:
        if error.reason is not TrialReason.EMULATE_TIMEOUT:
            raise BenchError(f"{family_name}: not emulated: {error.evidence.get('message', error)}") from None
        return "limit", str(error.evidence.get("message", error)), False
    try:
        quiet = prove(ptx, family, problem, device, schedule, orders=(EARLY,), accuse=False).passed
    except UndecidedError:
        quiet = False
    if verdict.passed:
        return "", "", quiet
    how = "accusation" if "faults" in verdict.evidence else "numbers"
    return how, told(verdict) + (_tile_of(verdict, schedule) if how == "numbers" else ""), quiet


def _tile_of(verdict: EmulatedVerdict, schedule: Schedule) -> str:
    """Where a wrong number is, in the kernel's own terms: numbers name no line."""
    index, on = verdict.evidence.get("first"), verdict.evidence.get("on", {})
    if not isinstance(index, (list, tuple)) or len(index) < 2:
        return ""
    row, column = int(index[-2]), int(index[-1])
    bm, bn = schedule.integer("bm"), schedule.integer("bn")
    size = "x".join(str(on.get(x)) for x in "mnk")
    return f" (tile {row // bm}, {column // bn} of {bm}x{bn}, at {size}, order {on.get('order')})"


def accused(verdict: EmulatedVerdict) -> int:
    """Accusations of a kernel, other than wrong numbers."""
    faults = verdict.evidence.get("faults", ())
    return len(faults) if isinstance(faults, (list, tuple)) else 0


def told(verdict: EmulatedVerdict) -> str:
    """What the verdict says, in one line."""
    if verdict.passed:
        return ""
    return f"{verdict.reason}: {verdict.evidence.get('message', '')}"


# -- speed and sums
# -------------------------------------------------------------------------------------------------


REFERENCES: dict[str, tuple[str, str, dict[str, Value]]] = {
    "": ("gemm_sm80", "sm_80", {
        "bm": 128, "bn": 128, "bk": 32, "stages": 4, "warps_m": 2, "warps_n": 2, "split_k": 1, "resident": 1,
    }),
    "_sm90": ("gemm_sm90", "sm_90a", {
        "bm": 128, "bn": 256, "bk": 64, "stages": 4, "hand_off": "cooperative", "consumers_m": 2,
        "consumers_n": 1, "registers": "40/232", "cluster_m": 1, "cluster_n": 1, "split_k": 1,
    }),
}  # fmt: skip
"""Suffix of the figures -> (family, arch, schedule) of the GEMM of 256x512x320 in bf16."""


def reference_speed(home: Path, repeats: int) -> dict[str, float]:
    """Seconds of the reference GEMMs on one core, parsing included, and warp instructions a second."""
    found: dict[str, float] = {}
    problem = Gemm(256, 512, 320, "bf16")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for suffix, (name, arch, values) in REFERENCES.items():
            family, device = get_family(name), Device.for_arch(arch)
            schedule = family.default(problem, device).replace(**values)
            if illegal := family.check(problem, device, schedule):
                raise BenchError(f"the reference schedule of {name} is not legal: {illegal[0]}")
            built = compile_kernel(family.build(problem, device, schedule), home=home)
            assert built.ptx is not None
            seconds, rate = [], []
            for _ in range(repeats):
                begun = time.monotonic()
                verdict = prove(
                    built.ptx, family, problem, device, schedule, problems=(problem,), orders=(LATE,),
                    beside=False,
                )  # fmt: skip
                seconds.append(time.monotonic() - begun)
                if not verdict.passed:
                    raise BenchError(f"the reference GEMM of {name} is wrong: {told(verdict)}")
                rate.append(verdict.checks[0]["instructions"] / verdict.checks[0]["seconds"])
            found[f"reference_gemm{suffix}_s"] = statistics.median(seconds)
            found[f"instructions_per_s{suffix}"] = statistics.median(rate)
    finally:
        os.sched_setaffinity(0, cores)
    return found


def figures_of(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """The sums, and those of gemm_sm90 and of what was compiled for it by themselves."""
    facts = [dict(row.more) for row in rows]
    hopper = [
        row for row, f in zip(rows, facts, strict=True)
        if f.get("family") == "gemm_sm90" or (row.kind == "witness" and f.get("arch") == "sm_90a")
    ]  # fmt: skip
    return _sums(rows) | {f"{name}_sm90": value for name, value in _sums(hopper).items()}


def _sums(rows: Sequence[Row]) -> dict[str, float | int | None]:
    facts = [(row, dict(row.more)) for row in rows]
    tried = [(row, f) for row, f in facts if row.kind == "case" and f["compiled"]]
    mistakes = [(row, f) for row, f in facts if row.kind == "mutation" and f["equivalent"] is None]
    planted = [(row, f) for row, f in mistakes if f["class"] not in VISIBLE]
    visible = [row for row, f in mistakes if f["class"] in VISIBLE]
    found: dict[str, float | int | None] = {
        "schedules_verified": sum(row.passed for row, _ in tried),
        "schedules_wrong": sum(not row.passed for row, _ in tried),
        "schedules_not_compiled": sum(row.kind == "case" and not f["compiled"] for row, f in facts),
        "runs": sum(sum(f["runs"].values()) for _, f in tried),
        "pitfalls": sum(row.kind == "pitfall" for row in rows),
        "pitfalls_avoided": sum(row.kind == "pitfall" and row.passed for row in rows),
        "witnesses": sum(row.kind == "witness" for row in rows),
        "witnesses_right": sum(row.kind == "witness" and row.passed for row in rows),
        "planted": len(planted),
        "planted_distinct": len({f["edits"] for _, f in planted}),
        "caught": sum(row.passed for row, _ in planted),
        "caught_by_accusation": sum(f["caught_by"] == "accusation" for _, f in planted),
        "planted_right_in_program_order": sum(bool(f["right_in_program_order"]) for _, f in planted),
        "planted_visible": len(visible),
        "caught_visible": sum(row.passed for row in visible),
        "false_alarms": sum(bool(f.get("accused")) for row, f in facts if row.kind != "mutation")
        + sum(not row.passed for row, f in facts if row.kind == "mutation" and f["equivalent"] is not None),
    }
    return found


if __name__ == "__main__":
    sys.exit(main())
