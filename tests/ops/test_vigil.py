"""Does a process that can never go on again end, and one that is well go on?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from service.bus import vigil
from service.bus.loop import Loop
from service.bus.vigil import STATUS, Vigil

_BEGIN = """
import sys, threading, time
from service.bus import setup_logs, vigil
from service.bus.loop import Loop
vigil.LOOK_S, vigil.START_MOST_LOOKS, vigil.STEP_MOST_LOOKS = 0.02, 5, 20
loop = Loop(lambda: bool(time.sleep(0.05)), sweep_s=0.01, name="work")
setup_logs()
vigil.VIGIL.start()
vigil.VIGIL.watch(loop)
"""


def _process(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _BEGIN + text], stderr=subprocess.PIPE, text=True)


def _ended(text: str) -> tuple[int, str]:
    with _process(text) as process:
        _, told = process.communicate(timeout=60)
    return process.returncode, told


def test_a_thread_that_never_began_ends_its_process() -> None:
    """As when memory is short for its first step: whoever starts it waits for ever."""
    status, told = _ended(
        "threading._start_new_thread = lambda *_: 1\nthreading.Thread(target=print, daemon=True).start()"
    )
    assert status == STATUS
    assert "a thread that never began" in told
    assert "in start" in told, "the stacks of its threads"


def test_a_vital_thread_that_ended_ends_its_process() -> None:
    status, told = _ended(
        "thread = threading.Thread(target=int, name='keeper')\nthread.start()\n"
        "vigil.VIGIL.vital(thread)\nloop.run()"
    )
    assert status == STATUS
    assert "its thread keeper has ended" in told


def test_a_step_that_never_ends_ends_its_process() -> None:
    status, told = _ended("loop._step = lambda: time.sleep(60)\nloop.run()")
    assert status == STATUS
    assert "a step of its work loop has not ended" in told


def test_a_process_that_is_well_goes_on() -> None:
    """Many short steps, none between them, and threads that are started all the time; also after a stop."""
    with _process(
        "print('up', file=sys.stderr, flush=True)\nthreading.Timer(2, loop.stop).start()\nloop.run()"
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "up\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        process.send_signal(signal.SIGCONT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")


def test_threads_may_end_once_the_loop_is_told_to_stop() -> None:
    loop, watch = Loop(lambda: False, sweep_s=0.01, name="work"), Vigil()
    watch.watch(loop)
    thread = threading.Thread(target=lambda: None, name="loop")
    thread.start()
    thread.join()
    watch.vital(thread)
    assert watch.trouble() == "its thread loop has ended"
    loop.stop()
    assert watch.trouble() is None


def test_a_short_wait_for_a_thread_is_no_trouble() -> None:
    watch = Vigil()
    for _ in range(vigil.START_MOST_LOOKS + 2):
        threading.Thread(target=os.getpid).start()
        assert watch.trouble() is None
