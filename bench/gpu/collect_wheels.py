"""Which wheels does a machine with a GPU need beside its numpy, CuPy, cuda-bindings and NVRTC? Collects them.

    python bench/gpu/collect_wheels.py [--python 3.12] [--out DIR] [--most-mb 25]

The server's dependencies and pytest, for CPython of that version on x86-64 Linux, by the ordinary pip. What
the machine has itself, or a check never touches (a driver for Postgres), is left out. Exit 1 where they are
too large.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "gpu-wheels"
MOST_MB = 25.0
# The GPU machine's own; and what no embedded run on SQLite imports.
LEFT_OUT = frozenset({"rooftile", "numpy", "psycopg", "cupy", "cuda-bindings", "nvidia-cuda-nvrtc", "scipy"})
EXTRA = ("nvidia-ml-py>=12.560", "pytest>=8.3")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def requirements() -> list[str]:
    """Of the server and the client, without what is left out."""
    found = []
    for file in (ROOT / "pyproject.toml", ROOT / "client" / "pyproject.toml"):
        found += tomllib.loads(file.read_text())["project"]["dependencies"]
    return [one for one in [*found, *EXTRA] if name_of(one) not in LEFT_OUT]


def name_of(requirement: str) -> str:
    """The distribution that a requirement or a wheel's file name means, as PEP 503 writes it."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0] if found else requirement).lower()


def download(out: Path, python: str) -> None:
    """Wheels of the requirements and of all that they require."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.whl"):
        old.unlink()
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)] + ["manylinux2014_x86_64"]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(out),
        "--only-binary", ":all:", "--python-version", python, "--implementation", "cp",
        *(word for name in platforms for word in ("--platform", name)), *requirements(),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def prune(out: Path) -> Iterator[Path]:
    """Delete what came along and is left out; the wheels that stay."""
    for wheel in sorted(out.glob("*.whl")):
        if name_of(wheel.name.split("-")[0]) in LEFT_OUT:
            wheel.unlink()
        else:
            yield wheel


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", metavar="X.Y")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--most-mb", type=float, default=MOST_MB)
    options = parser.parse_args(argv)
    try:
        download(options.out, options.python)
    except subprocess.CalledProcessError as error:
        print(f"collect_wheels: pip ended with {error.returncode}", file=sys.stderr)
        return 1
    kept = list(prune(options.out))
    size = sum(wheel.stat().st_size for wheel in kept) / 1e6
    print(f"{len(kept)} wheels in {options.out}, {size:.1f} MB")
    if size > options.most_mb:
        largest = sorted(kept, key=lambda wheel: wheel.stat().st_size, reverse=True)[:5]
        names = ", ".join(f"{wheel.name} {wheel.stat().st_size / 1e6:.1f}" for wheel in largest)
        print(f"collect_wheels: over {options.most_mb:g} MB; the largest: {names}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
