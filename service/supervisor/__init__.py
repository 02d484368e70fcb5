"""How does one command run the whole service on this machine, and stop it again without a trace?

lock.py      HomeLock: one supervisor per home, and who it is
logfile.py   a child's output, rotated by size
devices.py   what this machine can be measured on
child.py     one child process: started, watched, restarted with back-off
tree.py      Supervisor: database, token, children
setup.py     what must be in place before the first child: migrations, admin token, port
"""

from service.supervisor.lock import HomeLock, Running
from service.supervisor.tree import Supervisor

__all__ = ["HomeLock", "Running", "Supervisor"]
