"""Which job does the command line of `rooftile tune` ask for?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rooftile.problem_args import add_job_arguments, add_problem_arguments, job_body

from service.cli.common import WrongUseError

_EXAMPLES = """\
examples:
  rooftile tune gemm --m 8 --n 4096 --k 4096 --dtype f32
  rooftile tune gemm --m 1,4,8 --n 4096 --k 4096 --dtype f32 --seconds 60
  rooftile tune gemm --m 512 --n 4096 --k 4096 --dtype bf16 --arch sm_80     (no GPU is needed)
  rooftile tune --spec job.json

Where `rooftile serve` runs on the same ROOFTILE_HOME it does the work, with the code it started with: stop or
restart it first if you have changed a kernel or a family.
"""


@dataclass(frozen=True)
class Options:
    """`body` is the body of POST /v1/jobs."""

    body: Mapping[str, Any]
    json: bool


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would exit, so that --json has its document then too."""

    def error(self, message: str) -> NoReturn:
        raise WrongUseError(f"{message} (see {self.prog} --help)")


def parse(argv: Sequence[str]) -> Options:
    """WrongUseError where argparse refuses, FieldError where a value is wrong, SystemExit after --help."""
    parser = _Parser(
        prog="rooftile tune",
        description="Tune a problem on this machine in the foreground: search, verify, time, race, publish.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_problem_arguments(parser)
    add_job_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    arguments = parser.parse_args(list(argv))
    return Options(body=job_body(arguments), json=arguments.json)
