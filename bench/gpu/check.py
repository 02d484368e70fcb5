"""Does everything of ours that needs a GPU work on this one, and how fast is it beside the vendor's?

    python bench/gpu/check.py --minutes N [--device gpu|cpu] [--json FILE] [--home DIR] [--wheels DIR]
    python bench/gpu/check.py --prepare ARCH --home DIR      (anywhere: cubins to carry to a machine with a
    GPU)

Runs the device tests (tests/gpu), verifies every family that the GPU's arch can run, tunes problems of
bench/data through the embedded tuner and races them with cuBLASLt, and compares the emulator's counters with
Nsight Compute where `ncu` is installed. FILE is whole after every step. Needs numpy, CuPy, cuda-bindings and
NVRTC of the machine; our own small dependencies come as wheels (bench/gpu/collect_wheels.py), unpacked beside
the sources.

Exit 0: all right; 1: something is wrong, or could not be run; 3: there is no GPU here.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "gpu-wheels"
# One module of each of our dependencies that a machine for GPUs may lack.
_NEEDED = (
    "alembic", "celery", "filelock", "jinja2", "ml_dtypes", "optuna", "platformdirs", "pydantic",
    "pydantic_settings", "pynvml", "pytest", "redis", "rich", "sqlalchemy", "stamina", "structlog",
    "threadpoolctl", "typer", "urllib3",
)  # fmt: skip
_MARK = "ROOFTILE_CHECK_READY"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parse(arguments)
    if _MARK not in os.environ:
        return _again(arguments, options.wheels)
    from bench.gpu.run import prepare, run

    if options.prepare:
        return prepare(options.prepare, options.home, options.seed)
    return run(options, float(os.environ[_MARK]))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/gpu/check.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything together (default 8)")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rewritten after every step")
    parser.add_argument(
        "--home", type=Path, help="a ROOFTILE_HOME with cubins built before; default: a new one"
    )
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="wheels of our dependencies")
    parser.add_argument(
        "--prepare", metavar="ARCH", help="only build, without a GPU, what a check of ARCH begins with"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the drawn kernels and sizes")
    parser.add_argument(
        "--only", choices=("tests", "verify", "tune", "counters"), action="append", help="only these steps"
    )
    options = parser.parse_args(argv)
    if not 0.2 <= options.minutes <= 600:
        parser.error(f"--minutes: {options.minutes} is not allowed: from 0.2 to 600")
    if options.prepare and options.home is None:
        parser.error("--prepare needs --home DIR, where the cubins are kept")
    return options


def _again(arguments: list[str], wheels: Path) -> int:
    """This script once more, with our sources and what they need on the path of it and of all its
    children."""
    path = [str(ROOT), str(ROOT / "client" / "src")]
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    with tempfile.TemporaryDirectory(prefix="rooftile-site-") as site:
        if missing:
            found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
            if not found:
                print(
                    f"check: not installed here: {', '.join(missing)}; and no wheels in {wheels} "
                    "(collect them with bench/gpu/collect_wheels.py)",
                    file=sys.stderr,
                )
                return 1
            for wheel in found:
                with zipfile.ZipFile(wheel) as file:
                    file.extractall(site)
            # Behind what is installed: its numpy and its CuPy are the machine's own.
            path.append(site)
        inherited = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*path, *([inherited] if inherited else [])]),
            # Only what PYTHONPATH says: the folder of this script has modules of its own.
            "PYTHONSAFEPATH": "1",
            _MARK: repr(time.time()),
        }
        import subprocess

        command = [sys.executable, str(Path(__file__).resolve()), *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
