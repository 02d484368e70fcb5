"""Which failures of a worker are there, apart from the outcomes of a trial?

OperationError (service.errors)    str() is the whole sentence a person reads
├── CompilerMissingError           (service.errors) no C compiler was found
├── DiskFullError                  (service.errors) no room left where the cache lies
├── DeviceBusyError                another process on this host, or another worker, owns the device
├── DeviceMismatchError            the device asked for is not the one of this machine
└── DeviceUnhealthyError           the device is there and not fit to be measured on
CompileFailure                     a recipe gave no artifact: reason and evidence, the outcome of a trial
RebuildError                       the bytes of a known hash cannot be made again here
MeasureError
├── ChildLostError                 the measuring process died or fell silent; it has been replaced
└── TrialCancelled                 the caller's `cancelled()` said so; the candidate's process is gone
"""

from __future__ import annotations

from collections.abc import Mapping

from service.errors import CompilerMissingError, DiskFullError, OperationError
from service.store.enums import TrialReason

__all__ = [
    "ChildLostError",
    "CompileFailure",
    "CompilerMissingError",
    "DeviceBusyError",
    "DeviceMismatchError",
    "DeviceUnhealthyError",
    "DiskFullError",
    "MeasureError",
    "OperationError",
    "RebuildError",
    "TrialCancelled",
]


class DeviceBusyError(OperationError):
    """Another process owns the device."""


class DeviceMismatchError(OperationError):
    """The device asked for is not here."""


class DeviceUnhealthyError(OperationError):
    """The device is busy without us, slower than it was, or its driver does not answer."""


class CompileFailure(Exception):  # an outcome of a trial, not a fault of the worker
    """A recipe that gave no artifact. `evidence` holds the log and what else explains it. `killed`: somebody
    else ended the compiler, and the same once more may succeed."""

    def __init__(
        self, reason: TrialReason, message: str, evidence: Mapping[str, object], *, killed: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.killed = killed
        self.evidence: dict[str, object] = {"message": message, **evidence}


class RebuildError(Exception):
    """The recipe of a known artifact gives other bytes here, or cannot be followed here."""


class MeasureError(Exception):
    """The measuring process failed; never the fault of the candidate."""


class ChildLostError(MeasureError):
    """The measuring process died or fell silent; with `memory`, because the host had none left."""

    def __init__(self, message: str, *, memory: bool = False) -> None:
        super().__init__(message)
        self.memory = memory


class TrialCancelled(MeasureError):  # the caller asked for it
    """The caller's `cancelled()` returned True."""
