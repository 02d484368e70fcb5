"""Which files make up a template, what is their hash, and how do they get where no path is seen?"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from service.errors import DataMissingError
from service.paths import kernels_dir

# Paths in messages and __FILE__ begin with this, wherever the sources lie.
VIRTUAL_ROOT = "/rooftile/kernels"

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
# Device code has no headers but ours, so both spellings name one.
_CUDA_INCLUDE = re.compile(rb'^([ \t]*#[ \t]*include[ \t]*)(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


@dataclass(frozen=True)
class Sources:
    """A template and every header of ours that it may include, by path relative to kernels/."""

    main: str
    files: tuple[tuple[str, bytes], ...]

    @property
    def sha256(self) -> str:
        """Over names and contents, in the order of the names."""
        total = hashlib.sha256()
        for name, data in self.files:
            total.update(f"{name}\0{len(data)}\0".encode())
            total.update(data)
        return total.hexdigest()

    def write(self, folder: Path) -> None:
        """Lay the files out under `folder` as under kernels/."""
        for name, data in self.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def virtual(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of each file as NVRTC is given it from memory; the template is among them.

        NVRTC takes a header when its name is what the include says, letter by letter, and writes that name
        into line information. So each include is made to say the full virtual name, wherever the includer
        lies; no line moves. Raises UnicodeDecodeError.
        """
        names = {name for name, _ in self.files}
        return tuple(
            (f"{VIRTUAL_ROOT}/{name}", _with_full_names(data, name, include_dir(self.main), names).decode())
            for name, data in self.files
        )


def _with_full_names(data: bytes, includer: str, headers: str, names: set[str]) -> bytes:
    def full(match: re.Match[bytes]) -> bytes:
        name = _among(names, (match[2] or match[3]).decode(errors="replace"), includer, headers)
        return match[0] if name is None else match[1] + f'"{VIRTUAL_ROOT}/{name}"'.encode()

    return _CUDA_INCLUDE.sub(full, data)


def include_dir(main: str) -> str:
    """The header folder of a template: `x86/gemm.c` -> `x86/include`."""
    return f"{PurePosixPath(main).parts[0]}/include"


def gather(main: str, root: Path | None = None) -> Sources:
    """Read the template and, through its includes, every header.

    Includes under an #if count always: a header that only some schedules use still belongs to the
    template's identity. Headers of C in <> belong to the compiler, and are named by its version; in CUDA
    sources they are ours like the quoted ones.
    """
    base = (kernels_dir() if root is None else root).resolve()
    found: dict[str, bytes] = {}
    todo = [main]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        path = base / name
        if not path.resolve().is_relative_to(base) or not path.is_file():
            raise DataMissingError(f"The kernel source {name} is missing from {base}.")
        data = found[name] = path.read_bytes()
        for included in _includes(data, main):
            todo.append(_resolve(included.decode(errors="replace"), name, include_dir(main), base, found))
    return Sources(main, tuple(sorted(found.items())))


def _includes(data: bytes, main: str) -> list[bytes]:
    if PurePosixPath(main).parts[0] != "cuda":
        return _INCLUDE.findall(data)
    return [quoted or angled for _, quoted, angled in _CUDA_INCLUDE.findall(data)]


def _among(names: Container[str], included: str, includer: str, headers: str) -> str | None:
    """Which of the gathered files an include means: the nearest."""
    for folder in (posixpath.dirname(includer), headers):
        name = posixpath.normpath(posixpath.join(folder, included))
        if name in names:
            return name
    return None


def _resolve(included: str, includer: str, headers: str, base: Path, found: Container[str]) -> str:
    for folder in (str(PurePosixPath(includer).parent), headers):
        name = posixpath.normpath(posixpath.join(folder, included))
        if name in found:  # the disk was asked before
            return name
        path = (base / folder / included).resolve()
        if path.is_file() and path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    raise DataMissingError(f"The header {included} that {includer} includes is missing from {base}.")
