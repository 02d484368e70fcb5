"""Does a worker whose disk is full stop claiming, say so, and go on when there is room?"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rooftile.device import local_cpu

from service.errors import DiskFullError, HomeError
from service.jobs.advance import advance
from service.jobs.submit import submit
from service.paths import prepare_home
from service.search.proposer import Proposer
from service.store import jobs, trials, workers
from service.store.database import Database
from service.store.enums import TrialState, WorkerKind, WorkerState
from service.store.errors import StoreFull
from worker.keeper import Keeper
from worker.room import LEAST_BYTES, Room, Roomy

MORE_THAN_ANY_DISK = 1 << 60


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return prepare_home(tmp_path / "home").root


def row(database: Database) -> tuple[WorkerState, str | None]:
    with database.read() as s:
        (found,) = workers.listing(s)
    return found.state, found.data.get("waits_for")


def test_what_is_free_decides_before_anything_is_claimed(home: Path) -> None:
    assert Room(home).lacks() is None
    lacking = Room(home, least_bytes=MORE_THAN_ANY_DISK).lacks()
    assert lacking is not None
    assert str(home) in lacking
    assert "MiB left" in lacking


def test_a_home_that_is_gone_is_a_sentence(home: Path) -> None:
    shutil.rmtree(home)
    lacking = Room(home).lacks()
    assert lacking is not None
    assert str(home) in lacking


def test_what_was_long_not_used_makes_room(home: Path) -> None:
    old = home / "cache" / "artifacts" / "blobs" / "ab" / "old.so"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"x" * 4096)
    os.utime(old, (1, 1))
    Room(home, least_bytes=MORE_THAN_ANY_DISK).lacks()
    assert not old.exists()


def test_after_a_failure_it_counts_whether_a_file_can_be_written(home: Path) -> None:
    """A limit on the size of files (a quota too) is not seen in what is free."""
    room = Room(home, pause_s=0.0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    told = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LEAST_BYTES // 2, before[1]))
    try:
        assert room.lacks() is None
        room.failed(OSError(errno.EFBIG, "File too large"))
        lacking = room.lacks()
        assert lacking is not None
        assert "File too large" in lacking
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, told)
    assert room.lacks() is None
    assert list((home / "work").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        DiskFullError("There is no room left."),
        HomeError("The home cannot be used."),
        StoreFull("The disk that holds the database is full."),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
    ids=lambda error: f"{type(error).__name__} {getattr(error, 'errno', '')}",
)
def test_a_step_that_finds_no_room_is_not_taken_again_at_once(
    home: Path, sqlite_url: str, error: Exception
) -> None:
    database = Database(sqlite_url)
    keeper = Keeper(database, WorkerKind.COMPILE)
    keeper.start()
    calls: list[float] = []
    errors = [error]

    def step() -> bool:
        calls.append(time.monotonic())
        if errors:
            raise errors[0]
        return True

    roomy = Roomy(step, Room(home, pause_s=0.3), keeper)
    try:
        assert not roomy()
        for _ in range(20):
            assert not roomy()
        assert len(calls) == 1
        assert row(database) == (WorkerState.WAITING, str(error))
        time.sleep(0.35)
        assert not roomy()  # there is room to see, and the step fails again: now it waits for twice as long
        time.sleep(0.35)
        assert not roomy()
        assert len(calls) == 2
        errors.clear()
        wait(roomy)
        assert row(database) == (WorkerState.IDLE, None)
        assert roomy()
        assert len(calls) == 4
    finally:
        keeper.stop()
        database.close()


def test_any_other_error_is_the_loops(home: Path, sqlite_url: str) -> None:
    database = Database(sqlite_url)
    keeper = Keeper(database, WorkerKind.COMPILE)

    def step() -> bool:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        Roomy(step, Room(home), keeper)()
    database.close()


def test_a_worker_on_a_full_disk_uses_up_no_claims(tmp_path: Path, postgres_url: str) -> None:
    """A real worker on a small disk of its own, which something else fills: nothing is claimed until it is
    emptied."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    home, log = tmp_path / "h", tmp_path / "log"
    home.mkdir()
    script = (
        f"mount -t tmpfs -o size=48m,mode=700 none {home} || exit 77;"
        f"head -c 100000000 /dev/zero > {home}/ballast 2>/dev/null; truncate -s -65536 {home}/ballast;"
        f"exec {sys.executable} -m worker compile --jobs 1"
    )
    environment = {
        **os.environ,
        "ROOFTILE_HOME": str(home),
        "ROOFTILE_DATABASE_URL": postgres_url,
        "ROOFTILE_LEASE_S": "8",
    }
    database = Database(postgres_url)
    body = {
        "problem": {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"},
        "target": {"arch": local_cpu().arch},
        "budget": {"trials": 2},
    }
    job, _ = submit(database, body)
    advance(database, job.id, Proposer())
    with log.open("wb") as told:
        worker = subprocess.Popen(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", script],
            env=environment,
            stdout=told,
            stderr=told,
        )
    try:

        def attempts() -> list[int]:
            with database.read() as s:
                return [one.attempt for one in trials.of_problem(s, jobs.problems(s, job.id)[0].id)]

        def waits() -> bool:
            if worker.poll() is not None and ("77" in str(worker.returncode) or "unshare" in log.read_text()):
                pytest.skip("this machine lets nobody mount")
            assert worker.poll() is None, log.read_text()
            with database.read() as s:
                return [one.state for one in workers.alive(s)] == [WorkerState.WAITING]

        assert attempts()
        wait(waits)
        time.sleep(2.0)
        assert set(attempts()) == {0}
        with database.read() as s:
            (told_row,) = workers.alive(s)
        assert "MiB left on the file system" in told_row.data["waits_for"]
        Path(f"/proc/{worker.pid}/root{home}/ballast").unlink()

        def built() -> bool:
            with database.read() as s:
                rows = trials.of_problem(s, jobs.problems(s, job.id)[0].id)
            return all(one.state is not TrialState.PROPOSED for one in rows)

        wait(built)
        assert set(attempts()) == {1}
        worker.terminate()
        assert worker.wait(30) == 0
        assert "nothing is claimed" in log.read_text()
    finally:
        worker.kill()
        worker.wait()
        database.close()


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
