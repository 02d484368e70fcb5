"""Does a process that cannot end in order end all the same, and say what held it up?"""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import signal, threading
from service.bus import child
child.LAST_S = 0.3
child.be_child()

def stuck_here():
    threading.Event().wait()

threading.Thread(target=stuck_here, name="worker-of-old").start()
signal.raise_signal(signal.SIGTERM)
"""


def test_it_ends_and_names_the_threads_and_their_places() -> None:
    environment = {**os.environ, "ROOFTILE_LOG_FORMAT": "json"}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    (line,) = [one for one in done.stderr.splitlines() if "not ended in order" in one]
    assert "worker-of-old" in line
    assert "stuck_here (<string>:" in line
