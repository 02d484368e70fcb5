"""How does `rooftile device` list the devices, take one out of service and put it back?"""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.table import Table
from sqlalchemy.orm import Session

from service.cli.common import opened, print_json, run_app
from service.cli.tables import table_console
from service.store import audit, devices, workers
from service.store.enums import AuditAction, DeviceState, WorkerKind
from service.store.records import DeviceRecord, WorkerRecord

app = typer.Typer(add_completion=False, no_args_is_help=True)
_JSON = typer.Option(False, "--json", help="Print one JSON document.")
_KEY = typer.Argument(..., help="The key that `rooftile device list` shows.")


@app.command("list")
def list_(as_json: bool = _JSON) -> None:
    """Show the devices that were ever connected, and who measures on them."""
    with opened("device") as database, database.read() as s:
        rows = devices.listing(s)
        here = workers.alive(s, WorkerKind.MEASURE)
    if as_json:
        print_json({"devices": [_row(row, here) for row in rows]})
        return
    table = Table("device", "name", "state", "workers", "reason", box=None, pad_edge=False)
    for row in rows:
        hosts = " ".join(_hosts(row, here))
        table.add_row(row.key, row.name, _state(row), hosts, row.reason or row.waits_for)
    table_console().print(table, markup=False)


@app.command()
def suspend(
    key: str = _KEY,
    reason: str = typer.Argument(..., help="Why: shown wherever a job waits for the device."),
    as_json: bool = _JSON,
) -> None:
    """Take a device out of service: it gets no more work, and jobs that need it wait."""
    _set_state(key, DeviceState.OUT_OF_SERVICE, reason.strip() or "A person said so.", as_json)


@app.command()
def resume(key: str = _KEY, as_json: bool = _JSON) -> None:
    """Put a device back into service; jobs that waited for it go on."""
    _set_state(key, DeviceState.AVAILABLE, "", as_json)


def _set_state(key: str, to: DeviceState, reason: str, as_json: bool) -> None:
    out = to is DeviceState.OUT_OF_SERVICE
    action = AuditAction.DEVICE_SUSPENDED if out else AuditAction.DEVICE_RESUMED

    def change(s: Session) -> None:
        devices.set_state(s, key, to, reason)
        audit.write(s, audit.command(), action, f"device:{key}", {"reason": reason})

    with opened("device") as database:
        database.run(change)
    if as_json:
        print_json({"key": key, "state": str(to), "reason": reason})
    elif to is DeviceState.AVAILABLE:
        print(f"{key} is in service.")
    else:
        print(f"{key} is out of service: {reason}")


def _row(record: DeviceRecord, here: Sequence[WorkerRecord]) -> dict[str, object]:
    return {
        "key": record.key,
        "name": record.name,
        "state": str(record.state),
        "connected": record.connected,
        "hosts": _hosts(record, here),
        "reason": record.reason or record.waits_for,
    }


def _hosts(record: DeviceRecord, here: Sequence[WorkerRecord]) -> list[str]:
    return sorted({one.host for one in here if one.device_key == record.key})


def _state(record: DeviceRecord) -> str:
    if record.state is DeviceState.OUT_OF_SERVICE:
        return "out of service"
    return "connected" if record.connected else "not connected"


def main(argv: Sequence[str]) -> int:
    """Entry point `device`."""
    return run_app(app, "device", argv)
