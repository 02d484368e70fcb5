"""Which C compilers does this machine have? The compile worker chooses; here one only looks.

The same commands in the same order as worker/compile/toolchain.py, without running any: the service may not
import the worker, and a test keeps the two equal.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from service.errors import CompilerMissingError
from service.paths import nvrtc_library

HOW_TO_GET_ONE = "Install gcc (`apt install gcc`), or `pip install 'rooftile-server[zig]'`."


def compilers() -> Iterator[tuple[str, list[str]]]:
    """C compilers of this machine as (name, command), in the order the compile worker tries them."""
    chosen = chosen_compiler()
    if chosen is not None:
        try:
            command = shlex.split(chosen)
        except ValueError:  # a quote without its end names nothing
            return
        if command and shutil.which(command[0]):
            yield command[0], command
        return
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            yield name, [name]
    wheel = importlib.util.find_spec("ziglang")
    if wheel is not None and wheel.origin is not None:
        yield "zig", [str(Path(wheel.origin).parent / "zig"), "cc"]


def chosen_compiler() -> str | None:
    """What `CC` names: no other compiler is tried then."""
    chosen = os.environ.get("CC", "").strip()
    return chosen or None


def need_compiler() -> None:
    """Raise CompilerMissingError where `examine` would say so, without building anything."""
    if next(compilers(), None) is None:
        raise CompilerMissingError(f"{none_found()} {HOW_TO_GET_ONE}")


NVRTC_EXTRA = "`pip install -e '.[compile]'` in a clone, else `pip install 'rooftile-server[compile]'`"


def need_nvrtc(arch: str) -> None:
    """Raise CompilerMissingError where no NVRTC for this CUDA arch is installed; none is loaded.

    The versions are those of worker/compile/nvrtc.py.
    """
    majors = (12,) if arch == "sm_70" else (13, 12)
    if all(nvrtc_library(major) is None for major in majors):
        wanted = " or ".join(map(str, majors))
        raise CompilerMissingError(
            f"Nothing compiles for {arch} here: there is no NVRTC {wanted}. Install the extra: {NVRTC_EXTRA}."
        )


def none_found() -> str:
    """The sentence for a machine without one."""
    chosen = chosen_compiler()
    if chosen is not None:
        return f"The C compiler that CC names, {chosen!r}, was not found; unset CC or correct it."
    return "No C compiler was found on PATH, and there is no ziglang wheel."
