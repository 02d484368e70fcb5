"""Which failures of running Rooftile end in one clear sentence instead of a traceback?

OperationError                 str() is the whole sentence a person reads
├── SettingsError              an environment variable holds a value that cannot be used
├── HomeError                  ROOFTILE_HOME cannot be created or written
├── HomeInUseError             another supervisor runs on the same home
├── PortTakenError             the address to listen on is in use
├── DiskFullError              no room left where the data lies
├── CompilerMissingError       no C compiler was found
├── DataMissingError           kernels or migrations are not in this installation
└── ChildGaveUpError           a child process died at once, again and again

The database's own errors are in service.store.errors; commands print those the same way.
"""

from __future__ import annotations

import errno


class OperationError(Exception):
    """A failure whose message is meant for the person at the terminal; the command ends with exit code 1."""


class SettingsError(OperationError):
    """An environment variable holds a value that cannot be used; the message names the variable."""


class HomeError(OperationError):
    """ROOFTILE_HOME cannot be created, written or made private."""


class HomeInUseError(OperationError):
    """Another supervisor holds the lock of this home."""


class PortTakenError(OperationError):
    """The address to listen on is in use or not allowed."""


class DiskFullError(OperationError):
    """The file system that holds the home has no room left."""


class CompilerMissingError(OperationError):
    """No C compiler was found, and the x86 families need one."""


class DataMissingError(OperationError):
    """Kernels or migrations are neither in a source tree nor in the installed package."""


class ChildGaveUpError(OperationError):
    """A child process died at once several times in a row, so restarting it again would not help."""


def host_is_short(error: BaseException) -> bool:
    """Whether this host has no memory or process left for us, which says nothing of what was being done."""
    short = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)
    return short or isinstance(error, MemoryError)
