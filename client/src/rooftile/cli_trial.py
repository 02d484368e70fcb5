"""What does `rooftile trial ID` show: everything the service knows about one schedule that was tried?"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rooftile.cli import DONE, print_json
from rooftile.errors import FieldError


def trial(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """rooftile trial ID"""
    parser.add_argument("trial", metavar="ID", help="the trial's id, as a job's page and its trials show it")
    parser.add_argument("--url", metavar="URL", help="address of the service (default ROOFTILE_URL)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")

    def run(args: argparse.Namespace) -> int:
        from rooftile.client import Client

        if not args.trial.isascii() or not args.trial.isdigit() or len(args.trial) > 18:
            raise FieldError("trial", args.trial, "the id of a trial, a whole number")
        found = Client(args.url).trial(int(args.trial))
        if args.json:
            print_json(dict(found))
        else:
            print("\n".join(lines(found)))
        return DONE

    return run


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The long form of a trial."""
    reason = f", {data['reason']}" if data.get("reason") else ""
    yield f"trial {data['id']} of job {data['job_id']}: {data['state']}{reason}"
    yield f"  problem    {data.get('title')}"
    yield f"  on         {data.get('device') or data.get('arch')}"
    if data.get("time_us"):
        yield f"  time       {data['time_us']:.1f} us{' (disturbed)' if data.get('contended') else ''}"
    if data.get("predicted_us"):
        yield f"  predicted  {data['predicted_us']:.1f} us by the cost model"
    yield "  schedule"
    yield from (f"    {line}" for line in str(data.get("schedule_long") or "").splitlines())
    message = (data.get("evidence") or {}).get("message")
    if message:
        yield f"  evidence   {message}"
    for verdict in data.get("verdicts") or ():
        if verdict.get("kind") != "emulated":
            said = "right" if verdict.get("passed") else "wrong"
            checks = len(verdict.get("checks") or ())
            yield f"  device     {said}, {checks} check{'' if checks == 1 else 's'}, {_error(verdict)}"
    emulation = data.get("emulation")
    if emulation:
        yield "  emulator"
        yield from (f"    {line}" for line in str(emulation.get("text") or "").splitlines())
    elif not str(data.get("arch") or "x86").startswith("x86"):
        yield f"  emulator   {'not emulated' if data.get('finished_at') else 'not emulated yet'}{reason}"
    resources = {
        name: value for name, value in (data.get("resources") or {}).items() if isinstance(value, int | str)
    }
    if resources:
        yield "  resources  " + ", ".join(f"{name} {value}" for name, value in resources.items())
    if data.get("artifact"):
        yield f"  artifact   {data['artifact']}"


def _error(verdict: Mapping[str, Any]) -> str:
    error, bound = verdict.get("max_error"), verdict.get("bound")
    if error is None or bound is None:
        return "no error known"
    return f"nearest to its bound: error {error:.3g} of {bound:.3g} allowed"
