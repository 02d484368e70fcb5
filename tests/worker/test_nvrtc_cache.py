"""Does the artifact cache heal, stay within its size, and serve many processes at once?"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.planted_cuda import spec, write_cuda_template

from worker.compile import Artifact, compile_kernel, eviction
from worker.compile.artifact import Recipe, Toolchain, digest
from worker.compile.cache import ArtifactCache
from worker.errors import DiskFullError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cuda_template(tmp_path / "kernels")


def recipe(number: int) -> Recipe:
    toolchain = Toolchain("nvrtc", "13.5.37", "", "nvptx64", "x86-64-v3", (), "0" * 64)
    return Recipe("kernel", "x86/x.c", (("N", str(number)),), (), ("run",), toolchain)


def put(cache: ArtifactCache, number: int, size: int = 10_000) -> Artifact:
    data = number.to_bytes(4, "little") * (size // 4)
    return cache.put(recipe(number), data, log="", resources={}, compile_s=0.1)


def set_age(cache: ArtifactCache, artifact: Artifact, number: int, age_s: float) -> None:
    when = time.time() - age_s
    os.utime(cache.blob_path(artifact.sha256), (when, when))
    os.utime(cache._recipe_path(recipe(number).key), (when, when))


def size_of(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "cache").rglob("*") if path.is_file())


@pytest.mark.parametrize("what", ["cubin", "ptx"])
@pytest.mark.parametrize("damage", ["half", "empty", "other bytes", "gone"])
def test_a_broken_entry_is_dropped_and_built_again(
    tmp_path: Path, root: Path, what: str, damage: str
) -> None:
    good = compile_kernel(spec(), home=tmp_path / "h", root=root)
    data = good.data if what == "cubin" else good.ptx
    assert data is not None
    path = ArtifactCache(tmp_path / "h").blob_path(hashlib.sha256(data).hexdigest())
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"half": data[: len(data) // 2], "empty": b"", "other bytes": b"x" * len(data)}[damage]
        )
    again = compile_kernel(spec(), home=tmp_path / "h", root=root)
    assert not again.cached
    assert (again.data, again.ptx) == (good.data, good.ptx)
    assert path.read_bytes() == data
    assert compile_kernel(spec(), home=tmp_path / "h", root=root).cached


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 1, "sha256": 5, "recipe": {}}']
)
def test_a_broken_record_is_dropped_and_built_again(tmp_path: Path, root: Path, text: str) -> None:
    compile_kernel(spec(), home=tmp_path / "h", root=root)
    (record,) = (tmp_path / "h" / "cache" / "artifacts" / "recipes").glob("*/*.json")
    record.write_text(text)
    assert not compile_kernel(spec(), home=tmp_path / "h", root=root).cached
    assert compile_kernel(spec(), home=tmp_path / "h", root=root).cached


def test_a_record_that_lost_its_ptx_is_built_again(tmp_path: Path, root: Path) -> None:
    compile_kernel(spec(), home=tmp_path / "h", root=root)
    (path,) = (tmp_path / "h" / "cache" / "artifacts" / "recipes").glob("*/*.json")
    kept = json.loads(path.read_text())
    del kept["record"]["ptx_sha256"]
    path.write_text(json.dumps(kept | {"record_sha256": digest(kept["record"])}))
    again = compile_kernel(spec(), home=tmp_path / "h", root=root)
    assert not again.cached
    assert again.ptx


@pytest.mark.parametrize("where", ["record", "blob"])
def test_a_folder_in_the_place_of_a_file_is_a_miss_and_replaced(tmp_path: Path, where: str) -> None:
    cache = ArtifactCache(tmp_path)
    made = put(cache, 0)
    path = cache.blob_path(made.sha256) if where == "blob" else cache._recipe_path(recipe(0).key)
    path.unlink()
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "file").write_text("x")
    assert cache.get(recipe(0)) is None
    assert not path.exists()
    path.mkdir()  # and where nobody has read it before
    assert put(cache, 0) == cache.get(recipe(0))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("where", ["record", "blob"])
@pytest.mark.parametrize("what", ["pipe", "endless", "huge"])
def test_what_would_be_read_for_ever_in_the_place_of_a_file_is_a_miss_and_replaced(
    tmp_path: Path, where: str, what: str
) -> None:
    cache = ArtifactCache(tmp_path)
    made = put(cache, 0)
    path = cache.blob_path(made.sha256) if where == "blob" else cache._recipe_path(recipe(0).key)
    for turn in range(2):  # once read, and once written where nobody has read before
        path.unlink(missing_ok=True)
        if what == "pipe":
            os.mkfifo(path)
        elif what == "endless":
            path.symlink_to("/dev/zero")
        else:
            with path.open("wb") as file:
                file.truncate(3 << 30)
        if turn == 0:
            assert cache.get(recipe(0)) is None
            assert not os.path.lexists(path)
    assert put(cache, 0) == cache.get(recipe(0))


@pytest.mark.parametrize("what", ["file", "dangling link"])
@pytest.mark.parametrize("above", [0, 1, 2, 3])
def test_a_file_in_the_place_of_a_folder_is_a_miss_and_replaced(
    tmp_path: Path, above: int, what: str
) -> None:
    cache = ArtifactCache(tmp_path)
    folder = cache._recipe_path(recipe(0).key).parents[above]
    folder.parent.mkdir(parents=True, exist_ok=True)
    if what == "file":
        folder.write_text("not a folder")
    else:
        folder.symlink_to("/nonexistent/folder")
    assert cache.get(recipe(0)) is None
    assert put(cache, 0) == cache.get(recipe(0))


def test_a_record_of_deep_nesting_is_a_miss_and_replaced(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    path = cache._recipe_path(recipe(0).key)
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000):
        put(cache, 0)
        path.write_text(text)
        assert cache.get(recipe(0)) is None
        assert not path.exists()


@pytest.mark.parametrize("was", ['"log":""', '"compile_s":0.1', '"resources":{}'])
def test_a_record_that_was_altered_is_a_miss(tmp_path: Path, was: str) -> None:
    cache = ArtifactCache(tmp_path)
    put(cache, 0)
    path = cache._recipe_path(recipe(0).key)
    text = path.read_text()
    assert text.count(was) == 1
    other = {'"log":""': '"log":"!"', '"compile_s":0.1': '"compile_s":0.2'}.get(was, '"resources":{"a":1}')
    path.write_text(text.replace(was, other))
    assert cache.get(recipe(0)) is None
    assert put(cache, 0) == cache.get(recipe(0))


def test_a_record_of_an_older_schema_is_a_miss_without_a_word(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    made = put(cache, 0)
    path = cache._recipe_path(recipe(0).key)
    older = {"schema": 1, "sha256": made.sha256, "recipe": recipe(0).to_json(), "log": "", "resources": {}}
    path.write_text(json.dumps(older | {"compile_s": 0.1}))
    with capture_logs() as logs:
        assert cache.get(recipe(0)) is None
    assert logs == []
    assert put(cache, 0) == cache.get(recipe(0))


def test_the_least_recently_used_goes_first_and_only_as_far_as_needed(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=100_000)
    kept = [put(cache, number) for number in range(9)]
    for number, artifact in enumerate(kept):
        set_age(cache, artifact, number, 10_000 - number)
    assert cache.get(recipe(0)) is not None  # a use: now it is the newest
    put(cache, 9)
    cache.sweep()
    assert size_of(tmp_path) <= 90_000
    assert [number for number in range(10) if cache.get(recipe(number)) is None] == [1, 2]


def test_within_its_limit_nothing_goes(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=1 << 20)
    for number in range(5):
        set_age(cache, put(cache, number), number, 1e6)
    assert cache.sweep().removed == 0
    assert all(cache.get(recipe(number)) is not None for number in range(5))


def test_what_was_just_used_is_never_taken_from_under_a_reader(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=20_000)
    fresh = [put(cache, number) for number in range(8)]
    assert cache.sweep().removed == 0
    assert all(cache.blob_path(artifact.sha256).exists() for artifact in fresh)
    set_age(cache, fresh[3], 3, eviction.GRACE_S + 60)
    assert cache.get_bytes(fresh[3].sha256) == fresh[3].data  # asked for by its hash: used
    assert cache.sweep().removed <= 1  # its record, at most
    assert cache.blob_path(fresh[3].sha256).exists()


def test_writing_alone_keeps_it_bounded(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=200_000)
    for number in range(100):
        set_age(cache, put(cache, number), number, 5000 - number)
    # Between two sweeps at most 1/32 of the limit and one artifact are written.
    assert size_of(tmp_path) <= 200_000 + 200_000 // 32 + 11_000


def test_a_sweep_survives_what_others_do_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=40_000)
    kept = [put(cache, number) for number in range(8)]
    for number, artifact in enumerate(kept):
        set_age(cache, artifact, number, 10_000 - number)
    real = eviction._last_use
    asked: list[Path] = []

    def meanwhile(path: Path) -> float | None:
        asked.append(path)
        if len(asked) == 1:
            path.unlink()  # another sweeper was first
        elif len(asked) == 2:
            eviction.touch(path)  # somebody uses it this moment
        return real(path)

    monkeypatch.setattr(eviction, "_last_use", meanwhile)
    cache.sweep()
    assert not asked[0].exists()
    assert asked[1].exists()
    assert size_of(tmp_path) <= 40_000


def test_parts_of_killed_writers_go_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=1 << 20)
    put(cache, 0)
    folder = cache.blob_path("ab" * 32).parent
    folder.mkdir(parents=True, exist_ok=True)
    old, new = folder / ".new-old", folder / ".new-new"
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (1.0, 1.0))
    cache.sweep()
    assert not old.exists()
    assert new.exists()


def test_the_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ROOFTILE_CACHE_MIB", raising=False)
    assert ArtifactCache(tmp_path).limit_bytes == 4 << 30
    monkeypatch.setenv("ROOFTILE_CACHE_MIB", "64")
    assert ArtifactCache(tmp_path).limit_bytes == 64 << 20


_MANY = """
import sys
from pathlib import Path
from support.planted_cuda import spec
from worker.compile import compile_kernel
from worker.compile.cache import ArtifactCache
home, root = Path(sys.argv[1]), Path(sys.argv[2])
for turn in range(3):
    for number in range(6):
        artifact = compile_kernel(spec(number=number), home=home, root=root)
        assert artifact.ptx and artifact.data
        # As small as it gets, so that sweeps and readers meet all the time.
        ArtifactCache(home, limit_bytes=12_000).sweep(grace_s=0.0)
print("done")
"""


def test_many_processes_that_build_read_and_sweep_at_once(tmp_path: Path, root: Path) -> None:
    command = [sys.executable, "-c", _MANY, str(tmp_path / "h"), str(root)]
    env = {**os.environ, "PYTHONPATH": "tests:."}
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(4)
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    for process, text in zip(running, said, strict=True):
        assert process.returncode == 0, text
        assert "broken cache entry" not in text  # what was swept is gone, and nobody's fault
    assert not list((tmp_path / "h").rglob(".new-*"))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("this system does not let us mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@needs_root
def test_a_full_disk_is_one_sentence_and_the_next_compiles_when_there_is_room(
    tmp_path: Path, root: Path
) -> None:
    home = tmp_path / "small"
    with small_disk(home, "400k"):
        kept = compile_kernel(spec(), home=home, root=root)
        filler = home / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(DiskFullError) as caught:
            compile_kernel(spec("shared"), home=home, root=root)
        assert "no room left" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not list(home.rglob(".new-*"))
        assert compile_kernel(spec(), home=home, root=root) == kept  # a hit needs no room
        filler.unlink()
        assert not compile_kernel(spec("shared"), home=home, root=root).cached


@needs_root
def test_a_read_only_disk_is_built_for_without_a_cache_and_said_once(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "small"
    with small_disk(home, "1m"):
        good = compile_kernel(spec(), home=home, root=root)
        (record,) = (home / "cache" / "artifacts" / "recipes").glob("*/*.json")
        record.write_text("{")
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
        with capture_logs() as logs:
            again = [compile_kernel(spec(), home=home, root=root) for _ in range(2)]
        assert ArtifactCache(home, limit_bytes=100).sweep(grace_s=-1.0).removed == 0
        subprocess.run(["mount", "-o", "remount,rw", str(home)], check=True)
    assert [(one.data, one.ptx, one.cached) for one in again] == [(good.data, good.ptx, False)] * 2
    assert [row["event"] for row in logs].count("artifacts are built and not kept") == 1


@needs_root
def test_a_disk_smaller_than_the_limit_is_made_room_on(tmp_path: Path) -> None:
    home = tmp_path / "small"
    with small_disk(home, "256k"):
        cache = ArtifactCache(home, limit_bytes=1 << 30)
        for number in range(60):
            set_age(cache, put(cache, number), number, 5000 - number)
        assert cache.get(recipe(59)) is not None
        assert cache.get(recipe(0)) is None


def test_no_room_is_told_where_a_disk_cannot_be_mounted(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ArtifactCache, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as no_room:
        no_room.setattr(ArtifactCache, "_write_once", full)
        with pytest.raises(DiskFullError, match="no room left"):
            compile_kernel(spec(), home=tmp_path / "h", root=root)
    assert not compile_kernel(spec(), home=tmp_path / "h", root=root).cached
