"""How does a search worker run as a process: `python -m service.search`?"""

from __future__ import annotations

import sys

from service import periods
from service.bus import HostGate, Kind, Loop, be_child, queue_of, run_loop
from service.bus.vigil import VIGIL
from service.errors import OperationError
from service.jobs.retention import Tidying
from service.search.worker import SearchWorker
from service.settings import process_settings
from service.store.database import Database
from service.store.errors import StoreError

TIDY_SWEEP_S = 20.0


def main(gate: HostGate | None = None) -> int:
    """Exit code 0 after a shutdown by signal, 1 with one sentence when it cannot start."""
    be_child()
    try:
        settings = process_settings()
        db = Database(settings.database_url, name="rooftile-search")
        db.ping()
        worker = SearchWorker(db, settings, gate=gate)
        worker.beat()
    except (OperationError, StoreError) as error:
        print(f"rooftile: {error}", file=sys.stderr)
        return 1
    heart = Loop(worker.beat, sweep_s=periods.heartbeat_s(), name="heartbeat")
    VIGIL.vital(heart.start())
    tidying = Tidying(db, settings, f"{worker.name}/retention", measuring=HostGate().measuring)
    tidy = Loop(tidying.step, sweep_s=TIDY_SWEEP_S, name="retention")
    tidying.stopping = lambda: tidy.stopping
    VIGIL.vital(tidy.start())
    try:
        loop = Loop(worker.step, sweep_s=settings.sweep_s, name="search")
        worker.stopping = lambda: loop.stopping
        run_loop(loop, settings, [queue_of(Kind.SEARCH)])
    except OperationError as error:
        print(f"rooftile: {error}", file=sys.stderr)
        return 1
    finally:
        for other in (heart, tidy):
            other.stop()
        for other in (heart, tidy):
            other.join(2.0)
        worker.close()
        db.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
