"""How many files may this process open, and how many of them are for event streams?

Each connection is one. Where the soft limit is a login shell's 1,024, a thousand streams would leave no file
for anybody else: /healthz would not be answered, and no connection to the database be made.
"""

from __future__ import annotations

import resource
import sys

LEFT_FOR_OTHERS = 512
"""256 requests under way (middleware.py), 28 connections to the database, and room for who keeps a connection
that does nothing."""


def raise_limit() -> None:
    """The soft limit becomes the hard one, as it may: the soft one is low for the sake of programs that wait
    by select(), which knows no file above 1,023."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_streams() -> int:
    """Streams that may be open and leave room for others: half of the limit, where it is very low."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - min(LEFT_FOR_OTHERS, soft // 2)
