"""Are the bytes that get loaded always the ones named, whatever happened to the cache?"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from rooftile import cache as cache_module
from rooftile.cache import ArtifactCache, CacheWarning, sha256_of
from rooftile.errors import ArtifactError

ARCH = "x86-64-v3"
DATA = b"\x7fELF" + bytes(range(256)) * 10
NAME = sha256_of(DATA)


class Source:
    """Where artifacts are fetched from; counts."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers) or [DATA]
        self.count = 0

    def __call__(self, sha256: str) -> bytes:
        self.count += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home" / "cache"


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """another_process() makes the cache forget what this process has loaded."""

    def forget() -> None:
        monkeypatch.setattr(cache_module, "_sealed", {})

    forget()
    return forget


Forget = Callable[[], None]


def on_disk(root: Path) -> Path:
    return root / ARCH / f"{NAME}.so"


def test_fetched_once_then_read_from_disk(root: Path, another_process: Forget) -> None:
    source = Source()
    assert ArtifactCache(root).path(NAME, ARCH, source).read_bytes() == DATA
    another_process()
    assert ArtifactCache(root).path(NAME, ARCH, source).read_bytes() == DATA
    assert source.count == 1
    for folder in (root, root / ARCH):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert on_disk(root).stat().st_mode & 0o077 == 0
    assert list((root / ARCH).iterdir()) == [on_disk(root)]


def test_what_a_process_loads_cannot_change_under_it(root: Path) -> None:
    path = ArtifactCache(root).path(NAME, ARCH, Source())
    on_disk(root).write_bytes(b"changed")
    assert path.read_bytes() == DATA
    assert ArtifactCache(root).path(NAME, ARCH, Source()) == path
    with pytest.raises(PermissionError):  # sealed
        path.write_bytes(b"other")


@pytest.mark.parametrize(
    "damage",
    [lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: d[: len(d) // 2], lambda d: b"", lambda d: d + b"\0",
     lambda d: pickle.dumps(d)],
    ids=["one bit", "half", "empty", "longer", "pickle"],
)  # fmt: skip
def test_a_damaged_file_is_replaced(
    root: Path, damage: Callable[[bytes], bytes], another_process: Forget
) -> None:
    ArtifactCache(root).path(NAME, ARCH, Source())
    on_disk(root).write_bytes(damage(DATA))
    another_process()
    source = Source()
    assert ArtifactCache(root).path(NAME, ARCH, source).read_bytes() == DATA
    assert source.count == 1
    assert on_disk(root).read_bytes() == DATA


def test_a_link_is_not_followed(root: Path, tmp_path: Path, another_process: Forget) -> None:
    (tmp_path / "elsewhere").write_bytes(DATA)
    ArtifactCache(root).path(NAME, ARCH, Source())
    on_disk(root).unlink()
    on_disk(root).symlink_to(tmp_path / "elsewhere")
    another_process()
    source = Source()
    assert ArtifactCache(root).path(NAME, ARCH, source).read_bytes() == DATA
    assert source.count == 1
    assert not on_disk(root).is_symlink()


def test_without_memory_files_the_checked_file_is_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(cache_module.os, "memfd_create", refused)
    assert ArtifactCache(root).path(NAME, ARCH, Source()) == on_disk(root)


def test_a_bad_transfer_is_tried_once_more(root: Path) -> None:
    source = Source(DATA[:-10], DATA)
    assert ArtifactCache(root).path(NAME, ARCH, source).read_bytes() == DATA
    assert source.count == 2


def test_bytes_that_never_match_are_an_error_and_leave_nothing(root: Path) -> None:
    source = Source(b"<html>Please log in</html>")
    with pytest.raises(ArtifactError, match="twice: not loaded"):
        ArtifactCache(root).path(NAME, ARCH, source)
    assert source.count == 2
    assert list(root.rglob("*.so")) == []
    with pytest.raises(ConnectionError):
        ArtifactCache(root).path(NAME, ARCH, _unreachable)


def _unreachable(sha256: str) -> bytes:
    raise ConnectionError


@pytest.mark.parametrize("name", ["", "../../etc/passwd", NAME.upper(), NAME + "0", NAME[:-1] + "/"])
def test_names_that_are_no_hash_never_reach_the_disk(root: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="64 hex digits"):
        ArtifactCache(root).path(name, ARCH, Source())
    with pytest.raises(ArtifactError, match="arch"):
        ArtifactCache(root).path(NAME, "../v3", Source())


def test_two_archs_do_not_share_an_entry(root: Path, another_process: Forget) -> None:
    source = Source()
    for arch in ("x86-64-v3", "x86-64-v4"):
        another_process()
        ArtifactCache(root).path(NAME, arch, source)
    assert source.count == 2
    assert len(list(root.rglob("*.so"))) == 2


# -- without a folder -------------------------------------------------------------------------------------


def works_in_memory(cache: ArtifactCache) -> None:
    """One warning, then right bytes from a place that only this process reaches, fetched once."""
    source = Source()
    with pytest.warns(CacheWarning, match="in memory only") as caught:
        path = cache.path(NAME, ARCH, source)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.path(NAME, ARCH, source) == path
    assert source.count == 1
    assert path.read_bytes() == DATA
    assert cache.root is None


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701])
def test_a_folder_open_to_others_is_not_used(root: Path, mode: int) -> None:
    root.mkdir(parents=True)
    root.chmod(mode)
    works_in_memory(ArtifactCache(root))
    assert list(root.iterdir()) == []
    assert root.stat().st_mode & 0o777 == mode


def test_a_folder_that_others_could_swap_is_not_used(root: Path) -> None:
    root.mkdir(parents=True, mode=0o700)
    root.parent.chmod(0o777)
    works_in_memory(ArtifactCache(root))


def test_a_folder_of_somebody_else_is_not_used(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    root.mkdir(parents=True, mode=0o700)
    os.chown(root, 12345, 12345)
    works_in_memory(ArtifactCache(root))


def test_a_file_in_the_place_of_the_folder(root: Path) -> None:
    root.parent.mkdir(parents=True)
    root.write_text("not a folder")
    works_in_memory(ArtifactCache(root))


def test_a_link_in_the_place_of_the_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    root.parent.mkdir(parents=True)
    root.symlink_to(tmp_path / "target")
    works_in_memory(ArtifactCache(root))


def test_no_home_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", "/proc/nowhere")
    works_in_memory(ArtifactCache())


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that takes names but no bytes; a real full disk needs a mount."""

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", no_room)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk(root: Path) -> None:
    works_in_memory(ArtifactCache(root))
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_memory_files_can_be_loaded(root: Path, toy_so: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(0o777)
    data = toy_so.read_bytes()
    with pytest.warns(CacheWarning):
        path = ArtifactCache(root).path(sha256_of(data), ARCH, Source(data))
    assert ctypes.CDLL(str(path)).lockstep is not None
