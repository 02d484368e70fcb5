"""Do the service, which only looks for a C compiler, and the worker, which runs it, mean the same one?"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from service.compilers import compilers, need_compiler
from service.errors import CompilerMissingError
from worker.compile.toolchain import find_compiler


def _program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = f'case "$1" in -dumpmachine) echo x86_64-linux-gnu;; *) echo "{says}";; esac'
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def _agree(name: str) -> None:
    shown, command = next(compilers())
    assert (shown, tuple(command)) == (name, find_compiler().command)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, no CC and no wheel of zig."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    return folder


@pytest.mark.parametrize("name", ["cc", "gcc", "clang"])
def test_on_path(path: Path, name: str) -> None:
    _program(path / name, "clang version 19.1.0")
    _agree(name)


def test_the_wheel_of_zig(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = _program(path.parent / "ziglang" / "zig", "clang version 19.1.0")
    spec = importlib.machinery.ModuleSpec("ziglang", None, origin=str(zig.with_name("__init__.py")))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    _agree("zig")
    assert find_compiler().command == (str(zig), "cc")


def test_what_cc_names_is_the_only_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(path / "gcc", "clang version 19.1.0")
    chosen = _program(path.parent / "other" / "my-cc", "clang version 18.0.0")
    monkeypatch.setenv("CC", str(chosen))
    _agree(str(chosen))
    monkeypatch.setenv("CC", "/no/such/compiler")
    for look in (need_compiler, find_compiler):
        with pytest.raises(CompilerMissingError, match="CC names, '/no/such/compiler'"):
            look()


def test_none_at_all(path: Path) -> None:
    for look in (need_compiler, find_compiler):
        with pytest.raises(CompilerMissingError, match="No C compiler was found"):
            look()
