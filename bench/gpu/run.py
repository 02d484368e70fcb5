"""What does a check do, in which order, and how long may each step take?"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rooftile.errors import RooftileError

from bench.common import BenchError, bench_lock, environment, say
from bench.gpu.cases import count_base, draw
from bench.gpu.counters import compare_counters
from bench.gpu.places import CpuPlace, GpuPlace, Place
from bench.gpu.report import Budget, Report
from bench.gpu.tuning import tune_all
from bench.gpu.verify import BATCH, compile_batch, verify_all
from search_space.device import Device
from service.errors import OperationError
from service.paths import prepare_home
from worker.compile import Artifact
from worker.errors import DeviceMismatchError

NO_GPU = 3
ROOT = Path(__file__).resolve().parents[2]
# Of the time that is left when a step begins.
SHARES = {"tests": 0.25, "verify": 0.35, "counters": 0.15}
CPU_SHARES = {"verify": 0.15}
ORDER = ("tests", "verify", "counters", "tune")
# For the last row, the children's end and the file.
_RESERVE_S = 15.0


def share_of(name: str, wanted: set[str], shares: Mapping[str, float]) -> float:
    """Of the time left when step `name` begins: all of it where no step that is wanted comes after."""
    after = ORDER[ORDER.index(name) + 1 :]
    return shares[name] if wanted & set(after) else 1.0


def run(options: argparse.Namespace, started: float) -> int:
    """The exit code of the whole check, which began at `started` (seconds since the epoch)."""
    spent = max(0.0, time.time() - started)
    if options.device == "gpu":
        try:
            # Before anything is made: a machine without a GPU has nothing to be checked.
            GpuPlace(Path(tempfile.gettempdir()))
        except (DeviceMismatchError, RooftileError) as error:
            print(f"check: there is no GPU to be checked: {error}", file=sys.stderr)
            return NO_GPU
    try:
        with bench_lock(), tempfile.TemporaryDirectory(prefix="rooftile-check-") as folder:
            home = prepare_home(Path(options.home or folder)).root
            return _check(options, home, spent)
    except (BenchError, OperationError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 1


def _check(options: argparse.Namespace, home: Path, spent: float) -> int:
    reserve = min(_RESERVE_S, 0.1 * 60 * options.minutes)
    budget = Budget(60.0 * options.minutes - spent, reserve)
    place: Place = GpuPlace(home) if options.device == "gpu" else CpuPlace(home)
    facts = _environment(place, options)
    report = Report(options.json, facts)
    wanted = set(options.only or ORDER)
    wrong: list[str] = []

    def step(name: str, action: Callable[[], None]) -> None:
        if name not in wanted:
            return
        say(f"{name}: {budget.left_s:.0f} s are left")
        started = time.monotonic()
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the other steps are run all the same
            wrong.append(name)
            text = f"{type(error).__name__}: {error}"
            say(f"{name}: {text}")
            report.step(name, error=text, trace=traceback.format_exc()[-3000:])
        report.step(name, took_s=round(time.monotonic() - started, 1))

    small = options.device == "cpu"
    # Tests and counters are for GPUs: on a CPU nobody waits for their share.
    planned = wanted - {"tests", "counters"} if small else wanted

    def share(name: str) -> float:
        return budget.share(share_of(name, planned, CPU_SHARES if small else SHARES))

    try:
        if options.device == "gpu":
            step("tests", lambda: _tests(report, share("tests")))
        step(
            "verify",
            lambda: verify_all(place, report, home, share("verify"), options.seed, small=small),
        )
        if options.device == "gpu":
            step("counters", lambda: compare_counters(place, report, home, share("counters")))
        place.close()  # a tuner of its own process will own the device
        step("tune", lambda: tune_all(place, report, home, budget))
    finally:
        place.close()
    if report.figures.get("kernels_wrong") or report.figures.get("defaults_not_compiled"):
        wrong.append("verify")
    if "verify" in wanted and not report.figures.get("kernels_verified"):
        wrong.append("verify")
    if report.figures.get("tune_failed"):
        wrong.append("tune")
    if report.figures.get("tests_failed"):
        wrong.append("tests")
    report.step("end", wrong=sorted(set(wrong)), exit=int(bool(wrong)))
    for text in report.left_out:
        say(f"left out: {text}")
    print(_summary(report))
    return int(bool(wrong))


def _environment(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    facts = {
        "minutes": options.minutes,
        "seed": options.seed,
        "checked": place.describe(),
        "python": sys.version,
    }
    try:
        return environment(**facts)
    except RooftileError:  # a CPU that has no kernels of ours may have a GPU that has
        return {"system": platform.platform(), **facts}


def _tests(report: Report, limit_s: float) -> None:
    """tests/gpu, in a process that may be killed."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--import-mode=importlib",
        f"--confcutdir={ROOT / 'tests' / 'gpu'}", str(ROOT / "tests" / "gpu"),
    ]  # fmt: skip
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
        text, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        text = (
            (late.stdout or b"").decode(errors="replace")
            if isinstance(late.stdout, bytes)
            else str(late.stdout)
        )
        code = None
        report.leave_out(f"tests: those that had not ended within {limit_s:.0f} s")
    counts = counts_of(text)
    report.figures |= {f"tests_{name}": counts.get(name, 0) for name in ("passed", "failed", "skipped")}
    if counts.get("error") or code != 0:  # None: they hung, which on a GPU is a fault like any other
        report.figures["tests_failed"] = max(
            1, int(report.figures["tests_failed"] or 0) + counts.get("error", 0)
        )
    report.step("tests", exit=code, **counts, tail=text.strip().splitlines()[-40:])


def counts_of(text: str) -> dict[str, int]:
    """What pytest's last line says: {"passed": 12, "skipped": 3...}."""
    found: dict[str, int] = {}
    for line in reversed(text.strip().splitlines()):
        pairs = re.findall(r"(\d+) (passed|failed|skipped|error)", line)
        if pairs:
            for number, name in pairs:
                found[name] = int(number)
            break
    return found


def _summary(report: Report) -> str:
    parts = [
        f"{name} {value if not isinstance(value, float) else round(value, 3)}"
        for name, value in report.figures.items()
    ]
    return "check: " + ", ".join(parts)


def prepare(arch: str, home: Path, seed: int) -> int:
    """Build what a check of that arch verifies first: the default schedules, and the first that are drawn."""
    try:
        device = Device.for_arch(arch)
    except RooftileError as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    prepare_home(home)
    wanted = count_base(device) + 4 * BATCH
    if not count_base(device):
        print(f"check: no family of ours runs on {arch}", file=sys.stderr)
        return 1
    kernels = draw(device, seed)
    built = 0
    while wanted > 0:
        batch = list(islice(kernels, min(BATCH, wanted)))
        wanted -= len(batch)
        built += sum(isinstance(made, Artifact) for _, made in compile_batch(batch, device, home))
    size = sum(file.stat().st_size for file in (home / "cache").rglob("*") if file.is_file())
    print(f"check: {built} cubins for {arch} lie in {home}, {size / 2**20:.1f} MiB")
    return 0
