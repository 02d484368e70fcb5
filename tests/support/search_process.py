"""A search worker as a process of its own that knows the toy family: start() runs this module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start(database_url: str, home: Path) -> subprocess.Popen[bytes]:
    """The real main of `python -m service.search`, with a gate of the test's own."""
    tests = Path(__file__).resolve().parent.parent
    known = {k: v for k, v in os.environ.items() if not k.startswith("ROOFTILE_")}
    environment = {
        **known,
        "ROOFTILE_HOME": str(home),
        "ROOFTILE_DATABASE_URL": database_url,
        "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]),
    }
    command = [sys.executable, "-m", "support.search_process", str(home)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


if __name__ == "__main__":
    from support.toy_family import register

    register()
    from service.bus import HostGate
    from service.search.__main__ import main

    sys.exit(main(HostGate(Path(sys.argv[1]))))
