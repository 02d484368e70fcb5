"""How wide is a table that a command prints?"""

from __future__ import annotations

import sys

from rich.console import Console

# A pipe or a file has no width: a table is not cut or folded to 80 columns there.
FILE_WIDTH = 160


def table_console() -> Console:
    """For stdout, as wide as the terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
