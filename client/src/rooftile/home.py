"""Where does this user keep Rooftile's data: cache, token, and (with the server) the database?

ROOFTILE_HOME where it is set; else the user data folder of the platform, the same one that
`platformdirs.user_data_dir("rooftile")` gives, worked out here so that the client needs no such package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def home() -> Path:
    """The folder, which need not exist. RuntimeError when the user has no home folder at all."""
    chosen = os.environ.get("ROOFTILE_HOME", "").strip()
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/rooftile").expanduser()
    data = os.environ.get("XDG_DATA_HOME", "").strip()
    base = Path(data) if Path(data).is_absolute() else Path("~/.local/share").expanduser()
    return base / "rooftile"
