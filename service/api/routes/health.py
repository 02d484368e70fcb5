"""Does the process answer, and can it do its work?"""

from __future__ import annotations

from fastapi import APIRouter
from rooftile.device import CUDA_ARCHS
from starlette.requests import Request

from service.api import schemas
from service.api.openapi import errors
from service.api.readiness import unready
from service.api.state import state_of
from service.store import devices, emulation_claims, workers
from service.store.enums import WorkerKind, WorkerState
from service.store.errors import StoreError

router = APIRouter(tags=["health"])

# Without one of each of these a job cannot get from request to release.
_NEEDED = (WorkerKind.SEARCH, WorkerKind.COMPILE, WorkerKind.MEASURE)


@router.get("/healthz", responses=errors(open_to_all=True), response_model=schemas.Health)
async def healthz() -> schemas.Health:
    """The process answers. Asks nobody: neither the database nor a thread of the pool."""
    return schemas.Health(status="ok")


@router.get("/readyz", responses=errors(open_to_all=True), response_model=schemas.Ready)
def readyz(request: Request) -> schemas.Ready:
    """The database answers and has this version's tables (else 503, and `field` says which of the two is
    missing); what else is not as it should be; which workers report."""
    state = state_of(request)
    database = state.database
    try:
        checks = state.readiness.checks(database)
    except StoreError as error:
        raise unready(error) from error
    with database.read() as s:
        alive = workers.alive(s)
        connected = [device.key for device in devices.connected(s)]
        # Only jobs for GPUs need an emulate worker: it is missed where one of them waits for it.
        to_emulate = emulation_claims.waits(s, CUDA_ARCHS)
    by_kind: dict[str, int] = {}
    for worker in alive:
        by_kind[str(worker.kind)] = by_kind.get(str(worker.kind), 0) + 1
    ready = {worker.kind for worker in alive if worker.state is not WorkerState.WAITING}
    needed = (*_NEEDED, WorkerKind.EMULATE) if to_emulate else _NEEDED
    return schemas.Ready(
        status="ok",
        database=database.dialect,
        workers=by_kind,
        devices=connected,
        missing=[str(kind) for kind in needed if kind not in ready],
        checks=checks,
    )
