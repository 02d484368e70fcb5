"""Which devices and instruction sets are there, what can be tuned on them, and which are in service?"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from sqlalchemy.orm import Session
from starlette.requests import Request

from service.api import portfolios, render, schemas, spaces
from service.api.auth import Principal, by, needs
from service.api.body import json_object
from service.api.errors import BadFieldError
from service.api.openapi import errors, request_body
from service.api.routes.params import absent, plain
from service.api.state import state_of
from service.store import audit, devices, workers
from service.store.enums import AuditAction, DeviceState, Scope, WorkerKind
from service.store.errors import NotFound

router = APIRouter(tags=["devices"])

MOST_KEY = 200
MOST_REASON = 500
Admin = Annotated[Principal, needs(Scope.ADMIN)]
KeyPath = Annotated[str, Path(description="a device's key", examples=["cpu-intel-6-85-8c-x86-64-v4"])]

_REASON = {
    "type": "object",
    "required": ["reason"],
    "properties": {"reason": {"type": "string", "minLength": 1, "maxLength": MOST_REASON}},
    "additionalProperties": False,
}


@router.get(
    "/v1/devices",
    dependencies=[needs(Scope.READ)],
    responses=errors(),
    response_model=schemas.DeviceList,
)
def list_devices(request: Request) -> schemas.DeviceList:
    """Every device that was ever connected, connected ones first, with the workers that report for it."""
    with state_of(request).database.read() as s:
        here = workers.alive(s, WorkerKind.MEASURE)
        return schemas.DeviceList(devices=[render.device(row, here) for row in devices.listing(s)])


@router.post(
    "/v1/devices/{key:id}:suspend",
    responses=errors(404, body=True),
    response_model=schemas.Device,
    openapi_extra=request_body(_REASON, {"reason": "the fan is being replaced"}),
)
def suspend_device(
    request: Request,
    principal: Admin,
    key: KeyPath,
    body: Annotated[dict[str, Any], Depends(json_object)],
) -> schemas.Device:
    """Take a device out of service: it gets no more work, and jobs that need it wait."""
    for name in body:
        if name != "reason":
            shown = name[:64] or '""'
            raise BadFieldError(f"{shown}: there is no such field.", field=shown, allowed=["reason"])
    why = body.get("reason")
    if not isinstance(why, str) or not 0 < len(why.strip()) <= MOST_REASON:
        raise BadFieldError(
            f"reason: a text of 1 to {MOST_REASON} characters is needed.",
            field="reason",
            value=why,
            allowed=f"a text of 1 to {MOST_REASON} characters",
        )
    return _set_state(request, principal, key, DeviceState.OUT_OF_SERVICE, why.strip())


@router.post(
    "/v1/devices/{key:id}:resume",
    responses=errors(404),
    response_model=schemas.Device,
)
def resume_device(request: Request, principal: Admin, key: KeyPath) -> schemas.Device:
    """Put a device back into service; jobs that waited for it go on."""
    return _set_state(request, principal, key, DeviceState.AVAILABLE, "")


def _set_state(
    request: Request, principal: Principal, key: str, to: DeviceState, reason: str
) -> schemas.Device:
    if len(key) > MOST_KEY or not key.isprintable():
        raise absent("device", key, "key")
    database = state_of(request).database
    out = to is DeviceState.OUT_OF_SERVICE
    action = AuditAction.DEVICE_SUSPENDED if out else AuditAction.DEVICE_RESUMED

    def change(s: Session) -> None:
        devices.set_state(s, key, to, reason)
        audit.write(s, by(request, principal), action, f"device:{key}", {"reason": reason})

    try:
        database.run(change)
    except NotFound:
        raise absent("device", key, "key") from None
    with database.read() as s:
        row = devices.get(s, key)
        assert row is not None  # devices are never forgotten
        return render.device(row, workers.alive(s, WorkerKind.MEASURE))


@router.get(
    "/v1/portfolios",
    dependencies=[needs(Scope.READ)],
    responses=errors(),
    response_model=schemas.PortfolioList,
)
def list_portfolios(
    request: Request,
    device: Annotated[str, Query(max_length=200, description="a device's key, or auto")] = "auto",
    family: Annotated[str | None, Query(max_length=64)] = None,
    cache: Annotated[str | None, Query(max_length=20)] = None,
    launch: Annotated[str | None, Query(max_length=20)] = None,
    loss_percent: Annotated[float, Query(ge=0, le=1000, description="what a covered problem may lose")] = 5.0,
) -> schemas.PortfolioList:
    """At most ten schedules of each family that are good for many problems on a device: what a search of
    another problem begins with."""
    with state_of(request).database.read() as s:
        return portfolios.shown(s, device, plain(family, "family"), cache, launch, loss_percent)


@router.get(
    "/v1/archs",
    dependencies=[needs(Scope.READ)],
    responses=errors(),
    response_model=schemas.ArchList,
)
def list_archs(request: Request) -> schemas.ArchList:
    """Every instruction set that is known by name, with the families that compile for it."""
    with state_of(request).database.read() as s:
        known = devices.listing(s)
    return schemas.ArchList(archs=spaces.archs(known))


@router.get(
    "/v1/spaces",
    dependencies=[needs(Scope.READ)],
    responses=errors(),
    response_model=schemas.SpaceOut,
)
def get_space(
    request: Request,
    op: Annotated[str, Query(max_length=64, description="gemm or attention", examples=["gemm"])],
    arch: Annotated[
        str | None, Query(max_length=64, description="an arch; or give a device", examples=["x86-64-v3"])
    ] = None,
    dtype: Annotated[str, Query(max_length=64, examples=["f32"])] = "f32",
    device: Annotated[str | None, Query(max_length=200, description="a device's key")] = None,
    m: Annotated[int | None, Query(description="sizes that choices may hang on")] = None,
    n: Annotated[int | None, Query()] = None,
    k: Annotated[int | None, Query()] = None,
) -> schemas.SpaceOut:
    """What may be tuned for an op, arch and dtype: families and parameters by group; or why nothing."""
    sizes = {name: value for name, value in (("m", m), ("n", n), ("k", k)) if value is not None}
    with state_of(request).database.read() as s:
        known = devices.listing(s)
    return spaces.space(op, plain(arch, "arch"), dtype, plain(device, "device"), sizes, known)
