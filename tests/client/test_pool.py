"""Does the thread pool run every thread, keep its barriers, survive forks, and leave nothing behind?"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rooftile.errors import ArtifactError, LaunchError
from rooftile.launch.pool import Pool, entry_address, get_pool, load_library

MakePool = Callable[[int], Pool]


class Check(ctypes.Structure):
    _fields_ = (("counters", ctypes.c_void_p), ("wrong", ctypes.c_void_p), ("rounds", ctypes.c_int64))


def run_lockstep(pool: Pool, toy_so: Path, threads: int, rounds: int) -> tuple[list[int], int]:
    """The rounds each thread counted, and how often one saw another out of step."""
    function = ctypes.c_void_p(entry_address(load_library(toy_so), "lockstep"))
    counters = (ctypes.c_int32 * (16 * pool.threads))()
    wrong = ctypes.c_int32(0)
    check = Check(ctypes.addressof(counters), ctypes.addressof(wrong), rounds)
    pool.run(function, bytes(check), threads)
    return [counters[16 * t] for t in range(pool.threads)], wrong.value


@pytest.mark.parametrize("created", [1, 2, 3, 5])
def test_every_thread_runs_and_barriers_hold(own_pool: MakePool, toy_so: Path, created: int) -> None:
    pool = own_pool(created)
    for threads in range(1, created + 1):
        counts, wrong = run_lockstep(pool, toy_so, threads, 300)
        assert counts == [300] * threads + [0] * (created - threads)
        assert wrong == 0


def test_wakes_workers_that_went_to_sleep(own_pool: MakePool, toy_so: Path) -> None:
    pool = own_pool(3)
    for _ in range(20):
        time.sleep(0.002)
        counts, wrong = run_lockstep(pool, toy_so, 3, 10)
        assert (counts, wrong) == ([10] * 3, 0)


def test_idle_workers_use_no_cpu(own_pool: MakePool, toy_so: Path) -> None:
    pool = own_pool(4)
    run_lockstep(pool, toy_so, 4, 10)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


def test_several_python_threads_share_one_pool(own_pool: MakePool, toy_so: Path) -> None:
    pool = own_pool(2)
    results: list[tuple[list[int], int]] = []

    def caller() -> None:
        for _ in range(50):
            results.append(run_lockstep(pool, toy_so, 2, 20))

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert results == [([20, 20], 0)] * 200


def in_child(work: Callable[[], bool]) -> bool:
    """Runs `work` in a forked child; True when it returned True within 20 s."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own(own_pool: MakePool, toy_so: Path) -> None:
    pool = own_pool(2)
    assert run_lockstep(pool, toy_so, 2, 5) == ([5, 5], 0)

    def grandchild() -> bool:
        return run_lockstep(pool, toy_so, 2, 5) == ([5, 5], 0)

    def child() -> bool:
        first = run_lockstep(pool, toy_so, 2, 5) == ([5, 5], 0)
        return first and in_child(grandchild) and run_lockstep(pool, toy_so, 2, 5) == ([5, 5], 0)

    assert in_child(child)
    assert run_lockstep(pool, toy_so, 2, 5) == ([5, 5], 0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_another_thread_runs_does_not_block_the_child(own_pool: MakePool, toy_so: Path) -> None:
    pool = own_pool(2)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            with pool.lock:
                run_lockstep(pool, toy_so, 2, 2000)

    other = threading.Thread(target=busy)
    other.start()

    def child() -> bool:
        with pool.lock:
            return run_lockstep(pool, toy_so, 2, 5) == ([5, 5], 0)

    try:
        time.sleep(0.01)
        assert all(in_child(child) for _ in range(3))
    finally:
        stop.set()
        other.join(20)


def thread_names() -> list[str]:
    return [Path(task.path, "comm").read_text().strip() for task in os.scandir("/proc/self/task")]


def test_closing_ends_the_threads(pool_so: Path, toy_so: Path) -> None:
    before = thread_names()
    pool = Pool(pool_so, 7)
    assert run_lockstep(pool, toy_so, 7, 3) == ([3] * 7, 0)
    assert thread_names().count("rooftile-6") == before.count("rooftile-6") + 1
    pool.close()
    assert sorted(thread_names()) == sorted(before)


def test_a_dropped_pool_ends_its_threads(pool_so: Path) -> None:
    before = sorted(thread_names())
    Pool(pool_so, 4)
    assert sorted(thread_names()) == before


def test_the_process_has_one_pool_for_an_artifact_and_it_grows(
    pool_so: Path, tmp_path: Path, toy_so: Path
) -> None:
    copy = tmp_path / "pool.so"
    copy.write_bytes(pool_so.read_bytes())
    small = get_pool(copy, 1)
    assert get_pool(copy, 1) is small
    large = get_pool(copy, 3)
    assert large is not small
    assert get_pool(copy, 2) is large
    assert run_lockstep(small, toy_so, 1, 5) == ([5], 0)
    assert run_lockstep(large, toy_so, 3, 5) == ([5] * 3, 0)


def test_refusals_say_why(own_pool: MakePool, toy_so: Path, tmp_path: Path) -> None:
    pool = own_pool(2)
    with pytest.raises(LaunchError, match="wants 3 threads, the pool has 2"):
        run_lockstep(pool, toy_so, 3, 1)
    with pytest.raises(LaunchError, match="at least one thread"):
        own_pool(0)
    with pytest.raises(LaunchError, match="no 100000 threads"):
        own_pool(100_000)
    with pytest.raises(ArtifactError, match="is not a thread pool"):
        Pool(toy_so, 2)
    with pytest.raises(ArtifactError, match="exports no 'other'"):
        entry_address(load_library(toy_so), "other")
    (tmp_path / "cut.so").write_bytes(toy_so.read_bytes()[:100])
    for missing in ("cut.so", "nowhere.so"):
        with pytest.raises(ArtifactError, match="cannot load"):
            load_library(tmp_path / missing)
    (tmp_path / "cut.so").write_bytes(toy_so.read_bytes())
    load_library(tmp_path / "cut.so")


def test_other_bytes_under_a_loaded_path_are_refused(toy_so: Path, pool_so: Path, tmp_path: Path) -> None:
    """dlopen would silently give the library that the path had before."""
    path = tmp_path / "kernel.so"
    path.write_bytes(toy_so.read_bytes())
    entry_address(load_library(path), "run")
    os.utime(path)  # as the artifact cache says that it was used
    load_library(path)
    path.unlink()
    path.write_bytes(pool_so.read_bytes())
    with pytest.raises(ArtifactError, match="was loaded before and has other bytes now"):
        load_library(path)


def test_an_empty_run_costs_microseconds(own_pool: MakePool, toy_so: Path) -> None:
    """Not a benchmark: 2 ms for a run would mean that workers sleep through back-to-back calls."""
    pool = own_pool(2)
    nothing = ctypes.c_void_p(entry_address(load_library(toy_so), "nothing"))
    best = float("inf")
    for _ in range(500):
        start = time.perf_counter()
        pool.run(nothing, b"", 2)
        best = min(best, time.perf_counter() - start)
    assert best < 0.002
