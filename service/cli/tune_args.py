"""Which job does the command line of `rooftile tune` ask for?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EXAMPLES = """\
examples:
  rooftile tune gemm --m 8 --n 4096 --k 4096 --dtype f32
  rooftile tune gemm --m 1,4,8 --n 4096 --k 4096 --dtype f32 --seconds 60
  rooftile tune --spec job.json      the body of POST /v1/jobs; - reads it from stdin
"""


@dataclass(frozen=True)
class Options:
    """`body` is the body of POST /v1/jobs."""

    body: Mapping[str, Any]
    json: bool


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="rooftile tune",
        description="Tune a problem on this machine in the foreground: search, verify, time, race, publish.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
