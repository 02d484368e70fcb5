"""Does the same recipe give the same bytes anywhere, and does every way to fail have its own name?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.planted import source, write_template

from search_space.family import BuildSpec
from service.store.enums import TrialReason
from worker.compile import Artifact, compile_kernel, compile_pool, rebuild, sandbox, toolchain, x86
from worker.compile.cache import ArtifactCache
from worker.compile.capacity import compile_slots, usable_cpus, usable_memory_bytes
from worker.compile.elf import ElfError, summarise
from worker.compile.farm import Order, compile_all
from worker.compile.sandbox import Limits
from worker.compile.sources import gather
from worker.compiling import clean_scratch
from worker.errors import CompileFailure, CompilerMissingError, DiskFullError, RebuildError

# Each level squares the number of terms: the preprocessor and the optimiser drown.
EXPLOSION = """
#include "rooftile_abi.h"
#define A1(x) (x * 3 + y[x & 7])
#define A2(x) (A1(x) + A1(A1(x)))
#define A3(x) (A2(x) + A2(A2(x)))
#define A4(x) (A3(x) + A3(A3(x)))
#define A5(x) (A4(x) + A4(x + 1) + A4(x + 2) + A4(x + 3) + A4(x + 4) + A4(x + 5) + A4(x + 6) + A4(x + 7))
#define A6(x) (A5(x) + A5(x + 8) + A5(x + 16) + A5(x + 24) + A5(x + 32) + A5(x + 40) + A5(x + 48))
RT_EXPORT void run(const void *packed, int thread, int threads, rt_barrier *barrier)
{
    int *y = (int *)packed; (void)threads; (void)barrier;
    y[0] = A6(thread) + A6(y[1]);
}
"""


def source_with(before: str) -> str:
    return source({"before": before})


def build(root: Path, home: Path, arch: str, text: str, **more: Any) -> Artifact:
    if not (root / "x86").exists():
        write_template(root, text)
    spec = BuildSpec("x86/planted.c", arch, more.pop("defines", ()), more.pop("flags", ()))
    return compile_kernel(spec, home=home, root=root, **more)


def test_two_folders_give_the_same_bytes(tmp_path: Path, arch: str) -> None:
    text = source_with("sink = (float)__FILE__[0];")
    one = build(tmp_path / "a", tmp_path / "home a", arch, text)
    other = build(tmp_path / "somewhere" / "else", tmp_path / "home b", arch, text)
    assert one.data == other.data
    assert one.sha256 == other.sha256
    assert one.recipe == other.recipe
    assert str(tmp_path).encode() not in one.data


def test_what_the_environment_says_is_not_in_the_bytes(
    tmp_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = build(tmp_path / "k", tmp_path / "h1", arch, source())
    monkeypatch.setenv("CPATH", "/nonexistent")
    monkeypatch.setenv("CFLAGS", "-O0")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    other = build(tmp_path / "k", tmp_path / "h2", arch, source())
    assert one.sha256 == other.sha256


def test_hit_and_miss_give_the_same_record(tmp_path: Path, arch: str) -> None:
    miss = build(tmp_path / "k", tmp_path / "h", arch, source(), defines=(("X", "1"),))
    hit = build(tmp_path / "k", tmp_path / "h", arch, source(), defines=(("X", "1"),))
    assert not miss.cached
    assert hit.cached
    assert hit == miss
    assert hit.log == miss.log
    assert hit.resources == miss.resources


def test_defines_flags_headers_and_template_are_in_the_key(tmp_path: Path, arch: str) -> None:
    home, root = tmp_path / "h", tmp_path / "k"
    text = source()
    keys = {build(root, home, arch, text).recipe["toolchain"]["sources_sha256"]}
    plain = build(root, home, arch, text)
    assert build(root, home, arch, text, defines=(("X", "1"),)).recipe != plain.recipe
    assert build(root, home, arch, text, flags=("-funroll-loops",)).recipe != plain.recipe
    header = root / "x86" / "include" / "rooftile_abi.h"
    header.write_text(header.read_text() + "\n/* changed */\n")
    keys.add(build(root, home, arch, text).recipe["toolchain"]["sources_sha256"])
    template = root / "x86" / "planted.c"
    template.write_text(template.read_text() + "\n")
    keys.add(build(root, home, arch, text).recipe["toolchain"]["sources_sha256"])
    assert len(keys) == 3


def test_included_headers_are_found_through_headers(tmp_path: Path) -> None:
    write_template(tmp_path, '#include "one.h"\n')
    (tmp_path / "x86" / "include" / "one.h").write_text('#if 0\n# include "two.h"\n#endif\n')
    (tmp_path / "x86" / "include" / "two.h").write_text("")
    names = [name for name, _ in gather("x86/planted.c", tmp_path).files]
    assert names == ["x86/include/one.h", "x86/include/two.h", "x86/planted.c"]


@pytest.mark.parametrize("damage", ["half", "empty", "record", "other bytes"])
def test_a_broken_cache_entry_is_dropped_and_rebuilt(tmp_path: Path, arch: str, damage: str) -> None:
    home, root = tmp_path / "h", tmp_path / "k"
    good = build(root, home, arch, source())
    blob = ArtifactCache(home).blob_path(good.sha256)
    if damage == "record":
        (record,) = (home / "cache" / "artifacts" / "recipes").glob("*/*.json")
        record.write_text(record.read_text()[:100])
    else:
        data = {"half": good.data[: len(good.data) // 2], "empty": b"", "other bytes": b"x" * len(good.data)}
        blob.write_bytes(data[damage])
    again = build(root, home, arch, source())
    assert not again.cached
    assert again.data == good.data
    assert blob.read_bytes() == good.data
    assert build(root, home, arch, source()).cached


def test_a_rebuilt_artifact_has_the_hash_it_had(tmp_path: Path, arch: str) -> None:
    pool = compile_pool(arch, home=tmp_path / "one")
    again = rebuild(pool.recipe, pool.sha256, home=tmp_path / "other")
    assert again.data == pool.data
    changed = {**pool.recipe, "toolchain": {**pool.toolchain, "version": "gcc 1.0"}}
    with pytest.raises(RebuildError, match="version"):
        rebuild(changed, pool.sha256, home=tmp_path / "other")


def test_compile_error_has_the_log_and_no_path_of_ours(tmp_path: Path, arch: str) -> None:
    with pytest.raises(CompileFailure) as caught:
        build(tmp_path / "k", tmp_path / "h", arch, source_with("not C at all;"))
    assert caught.value.reason is TrialReason.COMPILE_ERROR
    assert "planted.c" in str(caught.value.evidence["log"])
    assert str(tmp_path) not in str(caught.value.evidence["log"])
    assert list((tmp_path / "h" / "work").iterdir()) == []


def test_an_artifact_without_its_entry_is_refused_with_what_it_exports(tmp_path: Path, arch: str) -> None:
    text = source().replace("RT_EXPORT void run(", "RT_EXPORT void walk(")
    with pytest.raises(CompileFailure) as caught:
        build(tmp_path / "k", tmp_path / "h", arch, text)
    assert caught.value.evidence["kind"] == "bad_symbol"
    assert caught.value.evidence["exported"] == ["walk"]


def test_a_pathological_source_times_out_and_leaves_nothing(tmp_path: Path, arch: str) -> None:
    started = time.monotonic()
    with pytest.raises(CompileFailure) as caught:
        build(tmp_path / "k", tmp_path / "h", arch, EXPLOSION, limits=Limits(cpu_s=1, wall_s=20.0))
    assert caught.value.reason is TrialReason.COMPILE_TIMEOUT
    assert time.monotonic() - started < 19.0
    assert list((tmp_path / "h" / "work").iterdir()) == []


def test_the_wall_limit_kills_the_whole_group(tmp_path: Path, arch: str) -> None:
    with pytest.raises(CompileFailure) as caught:
        build(tmp_path / "k", tmp_path / "h", arch, EXPLOSION, limits=Limits(cpu_s=60, wall_s=0.5))
    assert caught.value.reason is TrialReason.COMPILE_TIMEOUT
    assert not _processes_under(tmp_path)


def test_want_of_memory_is_its_own_failure(tmp_path: Path, arch: str) -> None:
    with pytest.raises(CompileFailure) as caught:
        build(tmp_path / "k", tmp_path / "h", arch, EXPLOSION, limits=Limits(cpu_s=20, memory_bytes=80 << 20))
    assert caught.value.reason is TrialReason.COMPILE_MEMORY


def test_a_killed_compiler_is_want_of_memory() -> None:
    """A compiler of one process, as zig is, has no driver that would say what became of it."""
    for code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        reason, _ = x86._why(sandbox.Finished(code, "Killed\n", 1.0, timed_out=False), Limits())
        assert reason is TrialReason.COMPILE_MEMORY


def test_a_compiler_that_somebody_killed_runs_once_more_even_alone(tmp_path: Path, arch: str) -> None:
    """gcc's cc1 is what a system short of memory takes."""
    if toolchain.find_compiler().name != "gcc":
        pytest.skip("another compiler has another process")
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 20.0
        while len(killed) < 2 and time.monotonic() < deadline:
            for pid in _processes_under(tmp_path / "h"):
                if pid not in killed and "cc1" in _command_of(pid):
                    time.sleep(0.1)
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.02)

    thread = threading.Thread(target=kill)
    thread.start()
    limits = Limits(cpu_s=60, wall_s=30.0)
    order = Order("one", lambda: build(tmp_path / "k", tmp_path / "h", arch, EXPLOSION, limits=limits))
    ((_, outcome),) = compile_all([order])
    thread.join()
    assert len(killed) == 2
    assert isinstance(outcome, CompileFailure)
    assert outcome.reason is TrialReason.COMPILE_MEMORY
    assert "was killed" in outcome.message


def test_a_failure_of_its_own_alone_is_not_tried_again() -> None:
    calls: list[TrialReason] = []

    def failing(reason: TrialReason) -> Order[TrialReason]:
        def fail() -> Artifact:
            calls.append(reason)
            raise CompileFailure(reason, "by itself", {})

        return Order(reason, fail)

    for reason in (TrialReason.COMPILE_CRASH, TrialReason.COMPILE_MEMORY, TrialReason.COMPILE_TIMEOUT):
        list(compile_all([failing(reason)]))
        assert calls.count(reason) == 1


def test_what_killed_workers_left_goes_when_it_is_old(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in ("compile-old", "compile-new"):
        (work / name / "x86").mkdir(parents=True)
    for name in ("emulate-1-old.ptx", "emulate-2-new.ptx", "another.file"):
        (work / name).write_bytes(b"ptx")
    for path in work.iterdir():
        if "old" in path.name or path.name == "another.file":
            os.utime(path, (0, 0))
    assert clean_scratch(tmp_path) == 2
    left = {path.name for path in work.iterdir()}
    assert left == {"another.file", "compile-new", "emulate-2-new.ptx"}


def test_a_killed_worker_leaves_no_compiler_behind(tmp_path: Path, arch: str) -> None:
    write_template(tmp_path / "k", EXPLOSION)
    script = (
        "import sys; from pathlib import Path; from search_space.family import BuildSpec\n"
        "from worker.compile import compile_kernel\n"
        "spec = BuildSpec('x86/planted.c', sys.argv[3])\n"
        "compile_kernel(spec, home=Path(sys.argv[2]), root=Path(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "k"), str(tmp_path / "h"), arch]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20.0
    while not _processes_under(tmp_path / "h") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _processes_under(tmp_path / "h")
    worker.kill()
    worker.wait()
    while _processes_under(tmp_path / "h") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _processes_under(tmp_path / "h")


def test_a_failure_beside_others_is_tried_again_alone(tmp_path: Path, arch: str) -> None:
    calls: list[str] = []

    def flaky() -> Artifact:
        calls.append("flaky")
        if len([one for one in calls if one == "flaky"]) == 1:
            raise CompileFailure(TrialReason.COMPILE_MEMORY, "too many at once", {})
        return build(tmp_path / "k", tmp_path / "h", arch, source())

    def bad() -> Artifact:
        calls.append("bad")
        raise CompileFailure(TrialReason.COMPILE_ERROR, "no", {})

    got = dict(compile_all([Order("flaky", flaky), Order("bad", bad)], slots=2))
    assert isinstance(got["flaky"], Artifact)
    assert isinstance(got["bad"], CompileFailure)
    assert sorted(calls) == ["bad", "flaky", "flaky"]


def test_no_compiler_is_one_sentence_that_says_how_to_get_one(
    tmp_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompilerMissingError) as caught:
        compile_pool(arch, home=tmp_path / "h")
    assert "apt install gcc" in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerMissingError, match="no-such-compiler"):
        compile_pool(arch, home=tmp_path / "h")
    monkeypatch.setenv("CC", "cc 'without an end")
    with pytest.raises(CompilerMissingError, match="without an end"):
        compile_pool(arch, home=tmp_path / "h")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_one_sentence_and_no_half_written_record(tmp_path: Path, arch: str) -> None:
    home = tmp_path / "small"
    home.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=28k", "tmpfs", str(home)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this system does not let us mount")
    try:
        with pytest.raises(DiskFullError) as caught:
            build(tmp_path / "k", home, arch, source())
        assert "no room left" in str(caught.value)
        assert not list(home.rglob("*.json"))
        assert not list(home.rglob(".new-*"))
    finally:
        subprocess.run(["umount", str(home)], check=True)


def test_pool_size_follows_the_cgroup_not_the_visible_cores(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 264000000 kB\nMemAvailable: 262144000 kB\n")
    box = tmp_path / "sys/fs/cgroup/box"
    box.mkdir(parents=True)
    (box / "cpu.max").write_text("max 100000\n")
    (box / "memory.max").write_text(str(1 << 30))
    (box / "memory.current").write_text("0")
    assert usable_memory_bytes(tmp_path) == 1 << 30
    assert compile_slots(tmp_path) <= 2
    (box / "cpu.max").write_text("100000 100000\n")
    assert usable_cpus(tmp_path) == 1
    assert compile_slots(tmp_path) == 1
    (box / "memory.max").write_text(str(1 << 20))
    assert compile_slots(tmp_path) == 1


def test_elf_reader_refuses_what_is_no_shared_object(tmp_path: Path, arch: str) -> None:
    good = build(tmp_path / "k", tmp_path / "h", arch, source()).data
    assert summarise(good).exported == ("run",)
    for bad in (b"", b"\x7fELF", good[:200], good[: len(good) // 2], b"MZ" + good[2:]):
        with pytest.raises(ElfError):
            summarise(bad)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _processes_under(folder: Path) -> list[int]:
    """Processes whose working directory lies in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink().is_relative_to(folder):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
