"""What do all benches share: one machine-wide lock, the environment beside the figures, the result file?"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rooftile.device import local_cpu

from service.paths import bench_lock_path


class BenchError(Exception):
    """Why a bench could not measure; one sentence."""


@contextlib.contextmanager
def bench_lock(wait_s: float = 3600.0) -> Iterator[None]:
    """One bench at a time on this machine, whoever runs it. The lock of a device is another one."""
    path = bench_lock_path()
    lock = FileLock(path, timeout=wait_s, mode=0o666)
    try:
        with lock:
            yield
    except Timeout as timeout:
        raise BenchError(f"another bench has held {path} for {wait_s:.0f} s") from timeout


def environment(**more: Any) -> dict[str, Any]:
    """The machine, the toolchain and the date; never a path of this machine."""
    cpu = local_cpu()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": str(cpu.key),
        "cpu": cpu.name,
        "cores": cpu.cores,
        "llc_bytes": cpu.llc_total_bytes or cpu.llc_bytes,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
        "load_before": [round(x, 2) for x in os.getloadavg()],
        **more,
    }


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def write(
    path: Path | None,
    figures: Mapping[str, float | int | None],
    rows: Sequence[Mapping[str, Any]],
    env: Mapping[str, Any],
) -> None:
    """The result file: whole or not at all."""
    if path is None:
        return
    text = json.dumps({"figures": figures, "rows": rows, "environment": env}, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(text + "\n")
    partial.replace(path)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
