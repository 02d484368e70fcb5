"""How does one process of a replayed run start? `python -m bench.replay api|search|compile|measure`.

The product's own mains and loops, with the recorded space as one more family; compiling and measuring wait
instead of working. Refused unless ROOFTILE_TEST_HOST is `replay`: nothing of it may be taken for a real time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rooftile.errors import RooftileError

from bench.replay.compiling import ReplayCompiler
from bench.replay.device import MARK, ReplaySession, replayed_cpu
from bench.replay.family import register
from bench.replay.statements import count_statements
from search_space.device import device_of
from service.api.__main__ import main as api
from service.bus import Doorbell, HostGate, Kind, Loop, be_child, queue_of, run_loop
from service.bus.logs import setup_logs
from service.errors import OperationError
from service.paths import prepare_home
from service.search.__main__ import main as search
from service.settings import Settings, get_settings
from service.store import devices
from service.store.database import Database
from service.store.enums import WorkerKind
from service.store.errors import StoreError
from service.store.records import DeviceRecord
from worker.keeper import Keeper
from worker.measure.cuda_device import SharedGate
from worker.measuring import MeasureWorker
from worker.ownership import wait_for_device


def main(argv: Sequence[str]) -> int:
    kind, *rest = argv or [""]
    try:
        replayed_cpu()
        register()
        count_statements(get_settings().home)
        if kind == "api":
            return api(rest)
        if kind == "search":
            return search()
        be_child()
        setup_logs()
        settings = get_settings()
        database = Database(settings.database_url, name=f"rooftile {kind}")
        database.ping()
        if kind == "compile":
            return _compile(settings, database)
        if kind == "measure":
            return _measure(settings, database)
    except (OperationError, StoreError, RooftileError) as error:
        print(f"bench.replay {kind}: {error}", file=sys.stderr, flush=True)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


def _compile(settings: Settings, database: Database) -> int:
    keeper = Keeper(database, WorkerKind.COMPILE)
    keeper.data = dict(MARK)
    home = prepare_home(settings.home).root
    worker = ReplayCompiler(
        database, HostGate(), Doorbell(settings), keeper, home, slots=2, archs=[replayed_cpu().arch]
    )
    return _run(worker, settings, keeper, queue_of(Kind.COMPILE))


def _measure(settings: Settings, database: Database) -> int:
    cpu = replayed_cpu()
    device = device_of(cpu)
    data = {**device.to_json(), **MARK}
    record = DeviceRecord(key=cpu.key, name=cpu.name, kind="cpu", arch=cpu.arch, data=data)
    database.run(lambda s: devices.upsert(s, record))
    keeper = Keeper(database, WorkerKind.MEASURE, cpu.key)
    keeper.data = dict(MARK)
    ownership = wait_for_device(database, keeper, cpu.key)
    try:
        with ReplaySession(cpu.key) as session:
            # Nothing runs on this CPU, so others may: as beside a GPU.
            gate, home = SharedGate(HostGate()), prepare_home(settings.home).root
            worker = MeasureWorker(database, gate, Doorbell(settings), keeper, session, home)
            return _run(worker, settings, keeper, queue_of(Kind.MEASURE, cpu.key))
    finally:
        ownership.close()


def _run(worker: ReplayCompiler | MeasureWorker, settings: Settings, keeper: Keeper, queue: str) -> int:
    loop = worker.stopper = Loop(worker.step, sweep_s=settings.sweep_s, name=queue)
    keeper.start()
    try:
        run_loop(loop, settings, [queue])
    finally:
        keeper.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
