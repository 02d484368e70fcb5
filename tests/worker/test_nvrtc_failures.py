"""Does every way for a CUDA compile to fail have its own name, and does the next candidate compile?"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.planted_cuda import SOURCE, spec, write_cuda_template

from service import paths
from service.store.enums import TrialReason
from worker.compile import Artifact, compile_kernel, nvrtc, rebuild
from worker.compile.farm import Order, compile_all
from worker.compile.nvrtc import find_nvrtc
from worker.compile.nvrtc_host import HostLostError, NvrtcHost, Request, host_of
from worker.compile.sandbox import Limits
from worker.errors import CompileFailure, CompilerMissingError

TIGHT = Limits(cpu_s=2, wall_s=20.0, memory_bytes=420 << 20)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cuda_template(tmp_path / "kernels")


def failure(root: Path, home: Path, kind: str, limits: Limits | None = TIGHT) -> CompileFailure:
    with pytest.raises(CompileFailure) as caught:
        compile_kernel(spec(kind), home=home, root=root, limits=limits)
    return caught.value


def compiles(root: Path, home: Path, number: int = 7) -> bool:
    return bool(compile_kernel(spec(number=number), home=home, root=root).data)


EXPECTED = {
    "does not compile": (TrialReason.COMPILE_ERROR, "error: "),
    "takes for ever": (TrialReason.COMPILE_TIMEOUT, "2 s of CPU"),
    "eats memory": (TrialReason.COMPILE_MEMORY, "420 MiB"),
    "crashes": (TrialReason.COMPILE_CRASH, "signal 11"),
    "spills": (TrialReason.SPILLS, "spill stores"),
    "too much shared": (TrialReason.RESOURCE_LIMIT, "too much shared data"),
    "no entry": (TrialReason.COMPILE_ERROR, "no kernel gemm; it has other"),
    "entry in a namespace": (TrialReason.COMPILE_ERROR, "no kernel gemm; it has _ZN6hidden4gemmEPfi"),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_each_failure_has_its_name_and_the_next_compiles(tmp_path: Path, root: Path, kind: str) -> None:
    host = find_nvrtc("sm_80").host
    assert compiles(root, tmp_path / "h")
    pid = host.pid
    started = time.monotonic()
    caught = failure(root, tmp_path / "h", kind)
    reason, words = EXPECTED[kind]
    assert caught.reason is reason, caught.evidence
    assert words in caught.message
    assert "log" in caught.evidence
    assert str(tmp_path) not in str(caught.evidence)
    assert time.monotonic() - started < 15.0
    assert compiles(root, tmp_path / "h", 8)
    assert host.pid == pid  # the process that forks was not harmed
    assert _children(pid) == []


def test_all_of_them_beside_each_other(tmp_path: Path, root: Path) -> None:
    def order(kind: str, number: int = 0) -> Order[str]:
        build = spec(kind, number=number)
        return Order(
            f"{kind}{number or ''}",
            lambda: compile_kernel(build, home=tmp_path / "h", root=root, limits=TIGHT),
        )

    orders = [order("good", 1), *(order(kind) for kind in EXPECTED), order("good", 2)]
    got = dict(compile_all(orders, slots=4))
    for kind, (reason, _) in EXPECTED.items():
        outcome = got[kind]
        assert isinstance(outcome, CompileFailure)
        assert outcome.reason is reason, kind
    assert isinstance(got["good1"], Artifact)
    assert isinstance(got["good2"], Artifact)


def test_the_log_is_the_evidence(tmp_path: Path, root: Path) -> None:
    log = str(failure(root, tmp_path / "h", "does not compile").evidence["log"])
    assert f"/rooftile/kernels/{SOURCE}(" in log
    spills = failure(root, tmp_path / "h", "spills").evidence
    assert "bytes spill stores" in str(spills["log"])
    assert spills["entries"]["gemm"]["registers"] == 64  # type: ignore[index] # 65,536 for 1024 threads
    assert spills["entries"]["gemm"]["spill_stores_bytes"] > 0  # type: ignore[index]


def test_a_register_limit_that_does_not_suffice_is_spills_too(tmp_path: Path, root: Path) -> None:
    loose = spec("spills")
    with pytest.raises(CompileFailure) as caught:
        compile_kernel(loose, home=tmp_path / "h", root=root)
    assert caught.value.reason is TrialReason.SPILLS


def test_the_wall_limit_kills_the_group(tmp_path: Path, root: Path) -> None:
    started = time.monotonic()
    caught = failure(root, tmp_path / "h", "takes for ever", Limits(cpu_s=60, wall_s=0.7))
    assert caught.reason is TrialReason.COMPILE_TIMEOUT
    assert "0.7 s" in caught.message
    assert time.monotonic() - started < 5.0
    assert _children(find_nvrtc("sm_80").host.pid) == []


@pytest.mark.parametrize("mib", [40, 150, 165])
def test_too_little_memory_for_anything_is_named_so(tmp_path: Path, root: Path, mib: int) -> None:
    """Below what the library takes, at its second library, and in its front end."""
    caught = failure(root, tmp_path / "h", "good", Limits(memory_bytes=mib << 20))
    assert caught.reason is TrialReason.COMPILE_MEMORY, caught.evidence
    assert compiles(root, tmp_path / "h")


def test_an_arch_that_nvrtc_does_not_know(tmp_path: Path, root: Path) -> None:
    with pytest.raises(CompileFailure) as caught:
        compile_kernel(spec(arch="sm_999"), home=tmp_path / "h", root=root)
    assert caught.value.reason is TrialReason.COMPILER_MISSING
    assert "sm_999" in caught.value.message
    assert find_nvrtc("sm_80").version in caught.value.message
    assert compiles(root, tmp_path / "h")


def test_no_nvrtc_is_one_sentence_that_names_the_extra(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as gone:
        gone.setattr(importlib.util, "find_spec", lambda _name: None)
        gone.setattr(paths, "_loader_cache", frozenset)
        gone.delenv("LD_LIBRARY_PATH", raising=False)
        assert nvrtc.cuda_archs_here() == ()
        for arch in ("sm_70", "sm_80"):
            with pytest.raises(CompilerMissingError, match=r"rooftile-server\[compile\]") as caught:
                compile_kernel(spec(arch=arch), home=tmp_path / "h", root=root)
            assert "\n" not in str(caught.value)
    assert compiles(root, tmp_path / "h")


def test_a_library_of_the_loader_path_serves_where_there_is_no_wheel(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvrtc.find_library("sm_80")
    assert found is not None
    folder = tmp_path / "toolkit"
    folder.mkdir()
    for file in Path(found[0]).parent.glob("libnvrtc*"):
        (folder / file.name).symlink_to(file)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(paths, "_loader_cache", frozenset)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    assert nvrtc.find_library("sm_80") == ("libnvrtc.so.13", found[1])
    assert nvrtc.find_library("sm_70") is None
    assert find_nvrtc("sm_80").library == "libnvrtc.so.13"
    assert compiles(root, tmp_path / "h")


def test_only_the_older_nvrtc_serves_what_it_knows(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "nvidia.cu13" else real(name)
    )
    monkeypatch.setattr(paths, "_loader_cache", frozenset)
    artifact = compile_kernel(spec(), home=tmp_path / "h", root=root)
    assert str(artifact.toolchain["version"]).startswith("12.9.")


def test_a_library_that_is_none_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_bytes(b"\x7fELF" + b"\0" * 100)
    request = Request("/rooftile/x.cu", "", (), ())
    with pytest.raises(CompilerMissingError, match="cannot be loaded"):
        NvrtcHost(str(broken)).run(request, Limits())
    with pytest.raises(CompilerMissingError, match="cannot be loaded"):
        NvrtcHost("libm.so.6").run(request, Limits())  # loads, and is no NVRTC


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_compile_that_a_signal_ends(tmp_path: Path, root: Path, number: signal.Signals) -> None:
    host = find_nvrtc("sm_80").host
    assert compiles(root, tmp_path / "h")

    def kill() -> None:
        child = _wait_for_child(host.pid)
        time.sleep(0.1)
        os.kill(child, number)

    thread = threading.Thread(target=kill)
    thread.start()
    caught = failure(root, tmp_path / "h", "takes for ever", Limits(cpu_s=30, wall_s=30.0))
    thread.join()
    # Nobody but a system short of memory kills with 9.
    memory = number is signal.SIGKILL
    assert caught.reason is (TrialReason.COMPILE_MEMORY if memory else TrialReason.COMPILE_CRASH)
    assert caught.killed is memory  # worth another try, and a crash of its own is not
    assert compiles(root, tmp_path / "h", 8)


def test_the_process_that_forks_is_replaced_when_it_is_killed(tmp_path: Path, root: Path) -> None:
    host = find_nvrtc("sm_80").host
    assert compiles(root, tmp_path / "h")
    first = host.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert compiles(root, tmp_path / "h", 8)
    assert host.pid != first


@pytest.mark.parametrize("times", [1, 2])
def test_killed_while_it_starts_is_no_missing_compiler(times: int) -> None:
    host = NvrtcHost(find_nvrtc("sm_80").library)
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 20.0
        while len(killed) < times and time.monotonic() < deadline:
            pid = host.pid
            if pid is not None and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.001)

    thread = threading.Thread(target=kill)
    thread.start()
    request = Request("/rooftile/x.cu", "__global__ void x() {}\n", (), ("-arch=sm_80",))
    try:
        if times == 1:
            assert host.run(request, Limits()).result == 0
        else:
            with pytest.raises(HostLostError, match="SIGKILL"):
                host.run(request, Limits())
    finally:
        thread.join()
        host.close()
    assert len(killed) == times


def test_a_first_look_at_a_compiler_that_is_killed_is_taken_again() -> None:
    library = find_nvrtc("sm_80").library
    host = host_of(library)
    request = Request("/rooftile/x.cu", "__global__ void x() {}\n", (), ("-arch=sm_80",))
    assert host.run(request, Limits()).result == 0
    killed: list[int] = []

    def kill() -> None:
        child = _wait_for_child(host.pid)
        os.kill(child, signal.SIGKILL)
        killed.append(child)

    thread = threading.Thread(target=kill)
    thread.start()
    version = nvrtc._ask_version(library, nvrtc._NVRTC_13)
    thread.join()
    assert killed
    assert version == find_nvrtc("sm_80").version


def test_a_rebuild_whose_compile_is_killed_is_made_again(tmp_path: Path, root: Path) -> None:
    host = find_nvrtc("sm_80").host
    built = compile_kernel(spec(), home=tmp_path / "one", root=root)
    killed: list[int] = []

    def kill() -> None:
        child = _wait_for_child(host.pid)
        os.kill(child, signal.SIGKILL)
        killed.append(child)

    thread = threading.Thread(target=kill)
    thread.start()
    again = rebuild(built.recipe, built.sha256, home=tmp_path / "other", root=root)
    thread.join()
    assert killed
    assert again.data == built.data


def test_killed_twice_during_one_compile_is_a_failure_of_that_compile(tmp_path: Path, root: Path) -> None:
    host = find_nvrtc("sm_80").host
    assert compiles(root, tmp_path / "h")

    def kill_twice() -> None:
        pid = None
        for _ in range(2):
            while host.pid in (pid, None):
                time.sleep(0.01)
            pid = host.pid
            child = _wait_for_child(pid)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            # What it had started dies with it.
            deadline = time.monotonic() + 5.0
            while _alive(child) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not _alive(child)

    thread = threading.Thread(target=kill_twice)
    thread.start()
    caught = failure(root, tmp_path / "h", "takes for ever", Limits(cpu_s=30, wall_s=30.0))
    thread.join()
    assert caught.reason is TrialReason.COMPILE_MEMORY
    assert "twice" in caught.message
    assert compiles(root, tmp_path / "h", 8)


class _Interrupted(Exception):
    pass


def test_who_gives_up_waiting_ends_the_compile(tmp_path: Path, root: Path) -> None:
    """As a Ctrl-C does, which is an exception in the midst of waiting."""
    assert compiles(root, tmp_path / "h")
    host = find_nvrtc("sm_80").host
    pid = host.pid

    def interrupt(*_: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(_Interrupted):
            compile_kernel(spec("takes for ever"), home=tmp_path / "h", root=root)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    deadline = time.monotonic() + 5.0
    while _children(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _children(pid) == []
    assert compiles(root, tmp_path / "h", 8)
    assert host.pid == pid


def test_a_killed_worker_leaves_nothing_behind(tmp_path: Path, root: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from support.planted_cuda import spec\n"
        "from worker.compile import compile_kernel; from worker.compile.nvrtc import find_nvrtc\n"
        "home, root = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "compile_kernel(spec(), home=home, root=root)\n"
        "print(find_nvrtc('sm_80').host.pid, flush=True)\n"
        "compile_kernel(spec('takes for ever'), home=home, root=root)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "h"), str(root)],
        env={**os.environ, "PYTHONPATH": "tests:."}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    host = int(worker.stdout.readline())
    child = _wait_for_child(host)
    worker.kill()
    worker.wait()
    worker.stdout.close()
    deadline = time.monotonic() + 10.0
    while (_alive(host) or _alive(child)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(host)
    assert not _alive(child)


def test_output_beyond_its_limit(tmp_path: Path, root: Path) -> None:
    caught = failure(root, tmp_path / "h", "good", Limits(file_bytes=1024))
    assert caught.reason is TrialReason.COMPILE_ERROR
    assert "larger than" in caught.message


def test_a_nul_byte_and_other_text_are_refused(tmp_path: Path, root: Path) -> None:
    source = root / SOURCE
    text = source.read_bytes()
    source.write_bytes(text + b"\0 int never_seen;")
    assert "NUL" in failure(root, tmp_path / "h", "good").message
    source.write_bytes(text + b"// \xff\xfe")
    assert "UTF-8" in failure(root, tmp_path / "h", "good").message
    source.write_bytes(text + "// µ\n".encode())
    assert compiles(root, tmp_path / "h")


def _children(pid: int | None) -> list[int]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(each) for each in text.split()]
    return []


def _wait_for_child(pid: int | None) -> int:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        for child in _children(pid):
            return child
        time.sleep(0.005)
    raise AssertionError("nothing compiles")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_limits_that_we_were_given_hold_where_they_are_less_than_ours() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
from worker.compile.nvrtc import find_nvrtc
print(find_nvrtc("sm_80").version)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == find_nvrtc("sm_80").version, done.stderr
