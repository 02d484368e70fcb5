"""How does a worker start and end? `python -m worker compile`, `emulate`, or `measure --device KEY`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog
from rooftile.device import local_cpu
from rooftile.errors import RooftileError

from search_space.device import device_of
from service.bus import Doorbell, HostGate, Kind, Loop, be_child, leave, queue_of, run_loop
from service.bus.child import stop_at_once
from service.host import ALIAS, VARIABLE, test_host
from service.paths import prepare_home
from service.settings import Settings, process_settings
from service.store import devices
from service.store.database import Database
from service.store.enums import WorkerKind
from service.store.errors import StoreError
from service.store.records import DeviceRecord
from worker.compile.capacity import compile_slots
from worker.compile.toolchain import find_compiler
from worker.compiling import FATAL, CompileWorker, archs_here, clean_scratch
from worker.emulating import EmulateWorker
from worker.errors import CompilerMissingError, DeviceMismatchError, DeviceUnhealthyError, OperationError
from worker.keeper import Keeper
from worker.measure.cuda_device import LocalGpu, SharedGate, find_gpu
from worker.measure.roof import device_roof
from worker.measure.session import MeasureSession
from worker.measure.tools import build_tools
from worker.measuring import MeasureWorker
from worker.ownership import DeviceOwnership, wait_for_device
from worker.room import Room, Roomy

_log = structlog.get_logger("rooftile.worker")

HAND_OVER_S, STOP_S = 0.5, 6.0
NICE = 10
"""Of the emulate worker of the embedded shape, and so of what it starts."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    compiling = kinds.add_parser("compile", help="build artifacts for every arch that a compiler is here for")
    compiling.add_argument(
        "--jobs", type=int, default=None, help="compilers at once (default: by CPUs and memory)"
    )
    compiling.add_argument(
        "--without-c",
        action="store_true",
        help="a C compiler is not needed: trials for CPUs then end by name",
    )
    kinds.add_parser("emulate", help="prove CUDA schedules in the emulator; needs no GPU")
    measuring = kinds.add_parser("measure", help="verify and time on one device")
    measuring.add_argument("--device", default="auto", help="key of the device; auto is this machine's CPU")
    options = parser.parse_args(argv)
    be_child()
    try:
        settings = process_settings()
        home = prepare_home(settings.home).root
        database = Database(settings.database_url, name=f"rooftile {options.kind}")
        database.ping()
        if options.kind == "compile":
            return _compile(settings, database, home, options.jobs, without_c=options.without_c)
        if options.kind == "emulate":
            return _emulate(settings, database, home)
        return _measure(settings, database, home, options.device)
    except (OperationError, StoreError, RooftileError) as error:
        print(f"rooftile worker {options.kind}: {error}", file=sys.stderr, flush=True)
        return 1


class _Fatal:
    """A step that stops its loop on what the worker cannot work without, and keeps the sentence."""

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step = step
        self.loop: Loop | None = None
        self.error: Exception | None = None

    def __call__(self) -> bool:
        try:
            return self._step()
        except (*FATAL, DeviceUnhealthyError) as error:
            self.error = error
            if self.loop is not None:
                self.loop.stop()
            return False


def _run(
    worker: CompileWorker | EmulateWorker | MeasureWorker,
    settings: Settings,
    name: str,
    queue: str,
    keeper: Keeper,
    home: Path,
) -> int:
    guarded = _Fatal(Roomy(worker.step, Room(home), keeper))
    loop = guarded.loop = worker.stopper = Loop(guarded, sweep_s=settings.sweep_s, name=name)
    keeper.start()
    ended = threading.Event()
    threading.Thread(target=_hand_over, args=(loop, keeper, ended), name="hand-over", daemon=True).start()
    try:
        run_loop(loop, settings, [queue])
    finally:
        ended.set()
        keeper.stop()
    if guarded.error is not None:
        raise OperationError(str(guarded.error))
    return 0


def _hand_over(loop: Loop, keeper: Keeper, ended: threading.Event) -> None:
    """What a worker that is told to stop cannot end at once, somebody else may take up: a late result of ours
    changes nothing, and a lease would hold it up. A step that goes on and on is left under way."""
    loop.wait_stopped()
    if ended.wait(HAND_OVER_S):
        return
    with contextlib.suppress(StoreError):  # the lease runs out then
        keeper.give_back()
    if not ended.wait(STOP_S):
        keeper.stop()
        leave(0)


def _compile(settings: Settings, database: Database, home: Path, jobs: int | None, *, without_c: bool) -> int:
    archs = archs_here(alone=settings.embedded, without_c=without_c)
    keeper = Keeper(database, WorkerKind.COMPILE)
    slots = jobs or compile_slots()
    named = _c_compiler()
    keeper.data = {"compiler": named, "slots": slots, "archs": list(archs)}
    clean_scratch(home)
    doorbell = Doorbell(settings)
    worker = CompileWorker(
        database, HostGate(), doorbell, keeper, home, slots=jobs, archs=archs, without_c=without_c
    )
    _log.info("compiling", compiler=named, slots=slots, archs=archs)
    try:
        return _run(worker, settings, "compile", queue_of(Kind.COMPILE), keeper, home)
    finally:
        doorbell.close()


def _emulate(settings: Settings, database: Database, home: Path) -> int:
    if settings.embedded:
        os.nice(NICE)  # everything else on this machine comes first
    keeper = Keeper(database, WorkerKind.EMULATE)
    clean_scratch(home)
    doorbell = Doorbell(settings)
    worker = EmulateWorker(database, HostGate(), doorbell, keeper, home)
    _log.info("emulating")
    try:
        return _run(worker, settings, "emulate", queue_of(Kind.EMULATE), keeper, home)
    finally:
        doorbell.close()


def _c_compiler() -> str | None:
    """Name and version; a machine that compiles for CUDA alone has none."""
    try:
        compiler = find_compiler()
    except CompilerMissingError:
        return None
    return f"{compiler.name} {compiler.version}"


def _measure(settings: Settings, database: Database, home: Path, wanted: str) -> int:
    if wanted.lower().startswith(("gpu-", "mig-")):
        return _measure_gpu(settings, database, home, find_gpu(wanted))
    if wanted == "auto":
        gpu = None
        with contextlib.suppress(DeviceMismatchError):  # the only GPU; without one the CPU
            gpu = find_gpu()
        if gpu is not None:
            return _measure_gpu(settings, database, home, gpu)
    cpu = local_cpu()
    if wanted == ALIAS:
        other = test_host()
        if other is None:
            raise DeviceMismatchError(f"The device {ALIAS} is for tests alone: {VARIABLE} is not set.")
        cpu = replace(cpu, vendor=other)
    key = cpu.key if wanted in ("auto", ALIAS) else wanted
    if key != cpu.key:
        raise DeviceMismatchError(f"The device {key} is not here; this machine's is {cpu.key}.")
    keeper = Keeper(database, WorkerKind.MEASURE, key)
    gate = HostGate()
    doorbell = Doorbell(settings)
    device = device_of(cpu)
    record = DeviceRecord(key=key, name=cpu.name, kind="cpu", arch=cpu.arch, data=device.to_json())
    database.run(lambda s: devices.upsert(s, record))
    ownership = _own(database, keeper, key)
    try:
        with gate.shared():
            tools = build_tools(cpu.arch, home)
        # Times of an alias mean nothing: no more of them than a test needs, and no roof to hold them against.
        budget_s, race_budget_s = (0.1, 1.0) if wanted == ALIAS else (None, None)
        if wanted == ALIAS:
            tools = replace(tools, calibrate=None)
        with MeasureSession(key, tools=tools, budget_s=budget_s, race_budget_s=race_budget_s) as session:
            with gate.exclusive():
                device_roof(database, session)
            keeper.data = {"threads": session.threads, "roof": session.roof is not None}
            worker = MeasureWorker(database, gate, doorbell, keeper, session, home)
            _log.info("measuring", device=key, threads=session.threads)
            return _run(worker, settings, "measure", queue_of(Kind.MEASURE, key), keeper, home)
    finally:
        keeper.stop()
        doorbell.close()
        ownership.close()


def _measure_gpu(settings: Settings, database: Database, home: Path, gpu: LocalGpu) -> int:
    keeper = Keeper(database, WorkerKind.MEASURE, gpu.key, uuid=gpu.uuid)
    doorbell = Doorbell(settings)
    database.run(lambda s: devices.upsert(s, gpu.record()))
    ownership = _own(database, keeper, gpu.key, gpu.uuid)
    try:
        with gpu.session() as session:
            session.open()  # a device that is not fit is told at once
            keeper.data = gpu.identity.to_json()
            worker = MeasureWorker(database, SharedGate(HostGate()), doorbell, keeper, session, home)
            _log.info("measuring", device=gpu.key, name=gpu.identity.name)
            return _run(worker, settings, "measure", queue_of(Kind.MEASURE, gpu.key), keeper, home)
    finally:
        keeper.stop()
        doorbell.close()
        ownership.close()


def _own(database: Database, keeper: Keeper, key: str, uuid: str | None = None) -> DeviceOwnership:
    """The device, as soon as nobody else has it. SIGTERM ends the waiting, in a container's first process
    too, which would not see it without a handler."""
    before = signal.signal(signal.SIGTERM, stop_at_once)
    try:
        return wait_for_device(database, keeper, key, uuid=uuid)
    except BaseException:
        keeper.stop()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    leave(main())
