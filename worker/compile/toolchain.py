"""Which C compiler is on this machine, and what is its identity?"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from service.errors import CompilerMissingError

_PROBE_S = 20.0
_HOW_TO_GET_ONE = (
    "install gcc or clang (Debian and Ubuntu: apt install gcc), "
    "or the extra with a compiler in a wheel: pip install 'rooftile-server[zig]'"
)


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C, and the facts that name it in a Toolchain."""

    command: tuple[str, ...]
    name: str  # gcc | clang | zig
    version: str
    linker: str
    target: str


_known: dict[tuple[str | None, str | None], Compiler] = {}
_lock = threading.Lock()


def find_compiler() -> Compiler:
    """The compiler of `CC`, else cc, gcc, clang, else the ziglang wheel. Raises CompilerMissingError.

    Remembered for each (CC, PATH), so that a changed environment is looked at again; a missing compiler
    is not remembered: somebody may install one while a worker runs.
    """
    key = (os.environ.get("CC"), os.environ.get("PATH"))
    with _lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = _find(key[0])
        return found


def _find(wanted: str | None) -> Compiler:
    if wanted and wanted.strip():
        try:
            compiler = _identify(tuple(shlex.split(wanted)))
        except ValueError:  # a quote without its end
            compiler = None
        if compiler is None:
            raise CompilerMissingError(
                f"The C compiler that CC names, {wanted!r}, does not run; unset CC or {_HOW_TO_GET_ONE}."
            )
        return compiler
    for name in ("cc", "gcc", "clang"):
        compiler = _identify((name,))
        if compiler is not None:
            return compiler
    wheel = importlib.util.find_spec("ziglang")
    if wheel is not None and wheel.origin is not None:
        # The program itself: `python -m ziglang` would cost a Python start for each compile.
        compiler = _identify((str(Path(wheel.origin).parent / "zig"), "cc"))
        if compiler is not None:
            return compiler
    raise CompilerMissingError(f"No C compiler was found: {_HOW_TO_GET_ONE}.")


def _identify(command: tuple[str, ...]) -> Compiler | None:
    text = _ask(command, "--version")
    if text is None:
        return None
    first = text.strip().splitlines()[0] if text.strip() else ""
    if len(command) > 1 and command[-1] == "cc" and Path(command[-2]).name in ("zig", "ziglang"):
        zig = _ask(command[:-1], "version")
        return Compiler(command, "zig", f"{(zig or '').strip()} {first}".strip(), "zig", "x86_64-linux-gnu")
    if "clang" in first:
        name = "clang"
    elif "Free Software Foundation" in text:
        name = "gcc"
    else:
        return None
    # "cc (Debian 12.2.0-14) 12.2.0" and "gcc (Debian 12.2.0-14) 12.2.0" are the same compiler.
    version = re.sub(r"^\S+ (?=\()", "", first) if name == "gcc" else first
    target = (_ask(command, "-dumpmachine") or "").strip()
    if target and not target.startswith(("x86_64", "amd64")):
        return None
    linker = _ask(((_ask(command, "-print-prog-name=ld") or "ld").strip(),), "--version")
    return Compiler(command, name, version, (linker or "").strip().splitlines()[0] if linker else "", target)


def _ask(command: tuple[str, ...], *args: str) -> str | None:
    try:
        done = subprocess.run(
            [*command, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


# Both compilers know the psABI levels by name; Zig spells them with underscores.
_LEVELS = {"x86-64-v3": "x86-64-v3", "x86-64-v4": "x86-64-v4"}
_EXTENSIONS = {
    "vnni": ("-mavx512vnni",),
    "bf16": ("-mavx512bf16",),
    "fp16": ("-mavx512fp16",),
    "amx": ("-mamx-tile", "-mamx-int8", "-mamx-bf16"),
}

# -ffp-contract=fast lets a*b+c become an FMA; everything else of -ffast-math would change what NaN and
# the order of sums mean. -fvisibility=hidden: only RT_EXPORT is seen. No -g: its paths would be bytes.
_COMMON = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-ident",
    "-Wall",
)
_LINK = ("-shared", "-pthread", "-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--as-needed")


def split_arch(arch: str) -> tuple[str, tuple[str, ...]]:
    """`x86-64-v4-vnni-bf16` -> (`x86-64-v4`, (`vnni`, `bf16`)). Raises ValueError for a foreign arch."""
    for level in _LEVELS:
        if arch == level or arch.startswith(level + "-"):
            extensions = tuple(part for part in arch[len(level) :].split("-") if part)
            unknown = [part for part in extensions if part not in _EXTENSIONS]
            if unknown:
                break
            return level, extensions
    raise ValueError(f"{arch!r} is not an arch that the x86 compiler can build for")


def arch_flags(arch: str, compiler_name: str) -> tuple[str, ...]:
    """The flags that choose the instruction set."""
    level, extensions = split_arch(arch)
    name = level.replace("-", "_") if compiler_name == "zig" else level
    flags = [f"-march={name}"]
    if level == "x86-64-v4" and compiler_name != "zig":
        # The template decides the vector width by its types; this keeps the compiler's own loops as wide.
        flags.append("-mprefer-vector-width=512")
    for extension in extensions:
        flags += _EXTENSIONS[extension]
    return tuple(flags)


def base_flags(arch: str, compiler_name: str) -> tuple[str, ...]:
    """All flags of a compile but those of its BuildSpec."""
    extra: tuple[str, ...] = ()
    if compiler_name == "zig":
        extra = ("-target", "x86_64-linux-gnu", "-fno-sanitize=all")
    return (*arch_flags(arch, compiler_name), *extra, *_COMMON, *_LINK)
