"""Do the emulator's counters say what the hardware counts? Beside Nsight Compute, where `ncu` is installed.

One launch of one kernel is run under ncu and in the emulator, with the same sizes. Sectors and bank conflicts
are comparable one to one; instructions are PTX here and SASS there, so only their ratio is told. Of TMA the
emulator counts whole boxes, the hardware what of them lies in the tensor: alike where tiles are whole.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rooftile.plan import Launch, LaunchPlan
from rooftile.problem import Gemm

from bench.gpu.places import Place
from bench.gpu.report import Report
from emulator import EmulatorError, Program, run_plan
from search_space import registry
from worker.compile import compile_kernel
from worker.compile.cache import ArtifactCache
from worker.errors import CompileFailure
from worker.verify.device_elements import fill_random, storage

# ncu's name -> the emulator's, as a path in its counters.
METRICS: dict[str, tuple[str, ...]] = {
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": ("global_sectors",),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum": ("global_sectors",),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": ("global_sectors",),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("bank_conflicts",),
    "smsp__inst_executed.sum": ("instructions",),
    "sm__inst_executed_pipe_tensor.sum": ("mma",),
}
_TMA_LOADS = "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld"
# The same of copies by TMA, asked for where the plan has tensor maps. Names in public use for sm_90, sm_100;
# not tried here. What arrives at L1 should count a multicast load at each block that receives it, under both
# names; the emulator's global_to_shared counts it once.
TMA_METRICS: dict[str, tuple[str, ...]] = {
    f"{_TMA_LOADS}.sum": ("bytes", "global_to_shared"),
    f"{_TMA_LOADS}_dest_multicast.sum": ("bytes", "multicast_to_shared"),
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum": ("bytes", "shared_to_global"),
    "smsp__sass_inst_executed_op_tma_ld.sum": ("bulk", "load_boxes"),
    "smsp__sass_inst_executed_op_tma_st.sum": ("bulk", "stores"),
}
_ALL = METRICS | TMA_METRICS
_SIZES = ((256, 256, 256), (130, 200, 136))


def compare_counters(place: Place, report: Report, home: Path, seconds: float) -> None:
    """A row for each family and size. Says why where it cannot be done."""
    if shutil.which("ncu") is None:
        report.leave_out("counters beside Nsight Compute: ncu is not installed here")
        return
    end = time.monotonic() + seconds
    compared = 0
    for name, family in registry.families().items():
        for m, n, k in _SIZES:
            problem = Gemm(m, n, k, "f16", layout={"b": "nk"})
            if family.supports(problem, place.device.arch.name):
                continue
            if time.monotonic() > end:
                report.leave_out(f"counters of {name} at {m}x{n}x{k}: no time left")
                continue
            row = _compare(place, home, name, problem, max(10.0, end - time.monotonic()))
            compared += "ncu" in row
            report.row(step="counters", family=name, sizes=[m, n, k], **row)
    report.figures["counters_compared"] = compared


def _compare(place: Place, home: Path, name: str, problem: Gemm, limit_s: float) -> dict[str, Any]:
    family, device = registry.get_family(name), place.device
    schedule = family.default(problem, device)
    try:
        artifact = compile_kernel(family.build(problem, device, schedule), home=home)
    except CompileFailure as failure:
        return {"failed": failure.message}
    plan = family.plan(problem, device, schedule)
    row: dict[str, Any] = {"schedule": schedule.one_line()}
    try:
        row["emulator"] = emulated(artifact.ptx or b"", plan, problem)
    except EmulatorError as error:
        return {**row, "failed": f"emulator: {error}"}
    order = home / "one_launch.json"
    path = ArtifactCache(home).blob_path(artifact.sha256)
    order.write_text(json.dumps({"path": str(path), "plan": plan.to_json(), "problem": problem.to_json()}))
    command = [
        "ncu", "--csv", "--page", "raw", "--metrics", ",".join(metrics_of(plan)), "--launch-count", "1",
        "--kernel-name", "gemm", sys.executable, "-m", "bench.gpu.one_launch", str(order),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, env=os.environ
        )
    except subprocess.TimeoutExpired:
        return {**row, "failed": f"ncu gave no answer within {limit_s:.0f} s"}
    found = parse_ncu(done.stdout)
    if not found:
        return {
            **row,
            "failed": f"ncu ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}",
        }
    return {**row, "ncu": found, "ratios": ratios(found, row["emulator"])}


def metrics_of(plan: LaunchPlan) -> dict[str, tuple[str, ...]]:
    """What ncu is asked for."""
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    by_tma = any(arg.type == "tensor_map" for step in launches for arg in step.args)
    return _ALL if by_tma else METRICS


def emulated(ptx: bytes, plan: LaunchPlan, problem: Gemm) -> dict[str, Any]:
    """The emulator's counters of a run on random f16 inputs, by role."""
    arrays: dict[str, Any] = {}
    for index, (operand, shape) in enumerate(
        (("a", (problem.m, problem.k)), ("b", (problem.n, problem.k)), ("out", (problem.m, problem.n)))
    ):
        flat = np.zeros(shape[0] * shape[1], storage("f16"))
        if operand != "out":
            fill_random(np, flat, "f16", 1, index)
        arrays[operand] = flat.reshape(shape)
    report = run_plan(Program.from_ptx(ptx), plan, problem.plan_names(), arrays, {"alpha": 1.0, "beta": 0.0})
    return dict(report.counters)


def parse_ncu(text: str) -> dict[str, float]:
    """Metrics of the first launch in ncu's CSV (page raw: a line of names, one of units, one a launch)."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(rows) < 3:
        return {}
    found = {}
    for name, value in zip(rows[0], rows[2], strict=False):
        if name in _ALL:
            try:
                found[name] = float(value.replace(",", ""))
            except ValueError:
                continue
    return found


def ratios(ncu: dict[str, float], counters: dict[str, Any]) -> dict[str, float | None]:
    """The hardware's count over ours, by our name. None: we have none."""
    sums: dict[tuple[str, ...], float] = {}
    for name, value in ncu.items():
        sums[_ALL[name]] = sums.get(_ALL[name], 0.0) + value
    ours = {path: total(counters, *path) for path in sums}
    return {".".join(path): (value / ours[path] if ours[path] else None) for path, value in sums.items()}


def total(counters: dict[str, Any], *path: str) -> float:
    """A counter over all roles; of a group, the sum of its members."""

    def add(value: Any) -> float:
        return sum(add(item) for item in value.values()) if isinstance(value, dict) else float(value)

    def found(value: Any) -> Any:
        for name in path:
            value = value.get(name, {}) if isinstance(value, dict) else {}
        return value

    return sum(add(found(role)) for role in counters.values())
