"""How do the processes wake each other, keep out of each other's way, and die together?

names.py     queues and tasks
app.py       the Celery application and its options
broker.py    does the broker keep what it is given?
doorbell.py  Doorbell: "there is work", never blocks, never raises
loop.py      Loop: claim, do, complete until stopped
vigil.py     a process that cannot go on ends, so that another can begin
worker.py    run_loop(): a Loop as the main of a process, with Celery's doorbell where there is a broker
hostgate.py  HostGate: compiling and searching together, or measuring alone, on one host
logs.py      setup_logs(): how log lines look (be_child calls it); say_who(), about(): who says it, of what
child.py     be_child(): a process that dies with its supervisor
"""

from service.bus.app import make_celery
from service.bus.child import be_child, die_with_parent, leave
from service.bus.doorbell import Doorbell
from service.bus.hostgate import GateInterrupted, HostGate
from service.bus.logs import about, say_who, setup_logs
from service.bus.loop import Loop
from service.bus.names import MAX_JOB_S, Kind, measure_queue, queue_of, task_of
from service.bus.worker import run_loop

__all__ = [
    "MAX_JOB_S",
    "Doorbell",
    "GateInterrupted",
    "HostGate",
    "Kind",
    "Loop",
    "about",
    "be_child",
    "die_with_parent",
    "leave",
    "make_celery",
    "measure_queue",
    "queue_of",
    "run_loop",
    "say_who",
    "setup_logs",
    "task_of",
]
