"""Is every kernel that this device can run right, at sizes drawn from the shape set, within a share of the
time?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bench.common import say
from bench.gpu.cases import Kernel, count_base, draw
from bench.gpu.places import Place
from bench.gpu.report import Report
from search_space.errors import SpaceError
from worker.compile import Artifact, compile_kernel
from worker.compile.farm import Order, compile_all
from worker.errors import CompileFailure, CompilerMissingError

# Kernels that are compiled together, on all cores, before they are verified one after the other.
BATCH = 12
CPU_BATCH = 2


def verify_all(
    place: Place, report: Report, home: Path, seconds: float, seed: int, *, small: bool = False
) -> None:
    """Until the time is spent; every kernel is a row as soon as it is judged."""
    end = time.monotonic() + seconds
    device = place.device
    kernels = draw(device, seed, small=small)
    counts = {"kernels": 0, "base": 0, "wrong": 0, "cases": 0, "skipped_cases": 0, "not_compiled": 0}
    counts["defaults_not_compiled"] = 0
    archs = {device.arch.name}
    while time.monotonic() < end:
        batch = list(islice(kernels, BATCH if place.kind == "gpu" else CPU_BATCH))
        if not batch:
            break
        for kernel, made in compile_batch(batch, device, home):
            if counts["kernels"] and time.monotonic() > end:
                break
            _one(place, report, kernel, made, counts)
        report.step("verify", **counts)
    base = count_base(device)
    if counts["base"] < base:
        report.leave_out(
            f"verify: {base - counts['base']} of {base} types, layouts and epilogues with their "
            "default schedule"
        )
    report.leave_out("verify: schedules beyond those drawn, and sizes of the shape set beyond ten a kernel")
    report.step("verify", **counts, archs=sorted(archs), base_of=base)
    report.figures |= {
        "kernels_verified": counts["kernels"] - counts["wrong"],
        "kernels_wrong": counts["wrong"],
        "defaults_not_compiled": counts["defaults_not_compiled"],
    }


def compile_batch(
    batch: list[Kernel], device: Any, home: Path
) -> Iterator[tuple[Kernel, Artifact | Exception]]:
    """Each kernel with its artifact, or what kept it from one, as they come: the others go on compiling while
    one is looked at."""
    orders = []
    for number, kernel in enumerate(batch):
        try:
            build = kernel.family.build(kernel.problem, device, kernel.schedule)
        except SpaceError as error:
            yield kernel, error
            continue
        orders.append(Order(number, lambda build=build: compile_kernel(build, home=home)))  # type: ignore[misc]
    for number, made in compile_all(orders):
        if isinstance(made, CompilerMissingError):
            raise made
        yield batch[number], made


def _one(
    place: Place, report: Report, kernel: Kernel, made: Artifact | Exception, counts: dict[str, int]
) -> None:
    title = kernel.title()
    if not isinstance(made, Artifact):
        counts["not_compiled"] += 1
        counts["defaults_not_compiled"] += kernel.base  # of others a few spill, and are refused for that
        reason = made.evidence if isinstance(made, CompileFailure) else str(made)
        report.row(step="verify", **title, result="not compiled", evidence=reason)
        return
    started = time.monotonic()
    plan = kernel.family.plan(kernel.problem, place.device, kernel.schedule)
    answer = place.verify(made, plan, kernel.cases)
    counts["kernels"] += 1
    counts["base"] += kernel.base
    row: dict[str, Any] = {
        "step": "verify",
        **title,
        "artifact": made.sha256,
        "seconds": time.monotonic() - started,
    }
    if answer["status"] != "verified":
        counts["wrong"] += 1
        said = answer["evidence"].get("message")
        say(f"WRONG {title['family']} {title['schedule']}: {answer['reason']}: {said}")
        report.row(**row, result=answer["reason"], evidence=answer["evidence"])
        return
    skipped = [check for check in answer["checks"] if "skipped" in check]
    counts["cases"] += len(answer["checks"]) - len(skipped)
    counts["skipped_cases"] += len(skipped)
    errors = [check["max_error"] for check in answer["checks"] if check.get("max_error") is not None]
    report.row(
        **row,
        result="right",
        cases=len(answer["checks"]),
        skipped=len(skipped),
        max_error=max(errors, default=None),
    )
