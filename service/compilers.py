"""Which C compilers does this machine have? The compile worker chooses; here one only looks."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterator

from service.errors import CompilerMissingError

HOW_TO_GET_ONE = "Install gcc (`apt install gcc`), or `pip install 'rooftile-server[zig]'`."


def compilers() -> Iterator[tuple[str, list[str]]]:
    """C compilers of this machine as (name, command), in the order the compile worker tries them."""
    chosen = os.environ.get("CC")
    if chosen:
        command = shlex.split(chosen)
        if command and shutil.which(command[0]):
            yield command[0], command
        return
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            yield name, [name]
    if importlib.util.find_spec("ziglang") is not None:
        yield "zig", [sys.executable, "-m", "ziglang", "cc"]


def need_compiler() -> None:
    """Raise CompilerMissingError where `examine` would say so, without building anything."""
    if next(compilers(), None) is None:
        raise CompilerMissingError(f"No C compiler was found. {HOW_TO_GET_ONE}")
