"""Which devices and instruction sets are there, and what can be tuned on them?"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from service.api import render, schemas, spaces
from service.api.auth import needs
from service.api.openapi import errors
from service.api.routes.params import plain
from service.api.state import state_of
from service.store import devices
from service.store.enums import Scope

router = APIRouter(tags=["devices"])


@router.get(
    "/v1/devices",
    dependencies=[needs(Scope.READ)],
    responses=errors(),
    response_model=schemas.DeviceList,
)
def list_devices(request: Request) -> schemas.DeviceList:
    """Every device that was ever connected, connected ones first."""
    with state_of(request).database.read() as s:
        return schemas.DeviceList(devices=[render.device(row) for row in devices.listing(s)])


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
