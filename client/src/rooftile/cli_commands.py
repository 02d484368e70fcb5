"""What do submit, watch, jobs, cancel and so on do, and how do they show it? (trial: cli_trial.py)

Each entry of COMMANDS adds its arguments to a parser and gives back what to run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from rooftile import __version__, problem_args
from rooftile.cli import DONE, FAILED, print_json
from rooftile.cli_trial import trial
from rooftile.errors import FieldError
from rooftile.problem import parse_problem

Run = Callable[[argparse.Namespace], int]


def _common(parser: argparse.ArgumentParser, *, service: bool = True) -> None:
    if service:
        text = "address of the service (default ROOFTILE_URL, else http://127.0.0.1:8417)"
        parser.add_argument("--url", metavar="URL", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _client(args: argparse.Namespace) -> Any:
    from rooftile.client import Client

    return Client(args.url)


# -- submit and watch -------------------------------------------------------------------------------------


def submit(parser: argparse.ArgumentParser) -> Run:
    """rooftile submit gemm --m 8 ... | --spec FILE"""
    problem_args.add_problem_arguments(parser)
    problem_args.add_job_arguments(parser)
    parser.add_argument("--wait", action="store_true", help="follow the job until it ends, as watch does")
    text = "the same request with the same key makes one job"
    parser.add_argument("--idempotency-key", metavar="TEXT", help=text)
    _common(parser)

    def run(args: argparse.Namespace) -> int:
        body = problem_args.job_body(args)
        job = _client(args).submit_body(body, idempotency_key=args.idempotency_key)
        if args.wait:
            return _follow(job, args.json, None)
        if args.json:
            print_json(dict(job.data))
        else:
            again = "" if job.data.get("created", True) else " (it was asked for before and is still open)"
            print(f"Job {job.id} is {job.state}{again}. Follow it with: rooftile watch {job.id}")
            if job.data.get("message"):
                print(job.data["message"])
        return DONE

    return run


def watch(parser: argparse.ArgumentParser) -> Run:
    """rooftile watch JOB"""
    parser.add_argument("job", metavar="JOB", help="the job's id, as submit prints it")
    text = "give up after so many seconds, with exit code 3"
    parser.add_argument("--timeout", type=float, metavar="S", help=text)
    _common(parser)
    return lambda args: _follow(_client(args).job(_job_id(args.job)), args.json, args.timeout)


def _steer(parser: argparse.ArgumentParser, verb: str) -> Run:
    """rooftile cancel|pause|resume JOB"""
    parser.add_argument("job", metavar="JOB", help="the job's id, as submit prints it")
    _common(parser)

    def run(args: argparse.Namespace) -> int:
        job = _client(args).job(_job_id(args.job))
        getattr(job, verb)()
        if args.json:
            print_json(dict(job.data))
        else:
            print(_progress(job.data))
        return DONE

    return run


def _job_id(text: str) -> str:
    if not text.isascii() or not text.isalnum() or len(text) > 64:
        raise FieldError("job", text, "the id of a job, as submit prints it")
    return text


def _follow(job: Any, as_json: bool, timeout: float | None) -> int:
    last = ""

    def show(changed: Any) -> None:
        nonlocal last
        line = _progress(changed.data)
        if line != last:
            last = line
            # Beside --json the lines are for people only, so they go to stderr.
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    if job.ended:
        job.refresh()  # the answer to a submit has not all of it
    show(job)
    job.wait(timeout=timeout, on_change=show)
    if as_json:
        print_json(dict(job.data))
    else:
        _result(job.data)
    return DONE if job.state == "done" else FAILED


def _progress(data: Mapping[str, Any]) -> str:
    words = [f"job {data.get('id')}", str(data.get("state"))]
    counts = data.get("counts") or {}
    if counts:
        listed = ", ".join(f"{count} {state}" for state, count in counts.items())
        total = sum(counts.values())
        words.append(f"{total} trial{'' if total == 1 else 's'} ({listed})")
    best = data.get("best")
    if best:
        words.append(f"best {_best_us(best)}{_gain(best.get('speedup'))}, trial {best['trial_id']}")
    if data.get("message"):
        words.append(str(data["message"]))
    return "  ".join(words)


def _result(data: Mapping[str, Any]) -> None:
    rows = [("PROBLEM", "STATE", "TIME", "BASELINE", "GAIN", "TRIAL", "SCHEDULE")]
    notes = []  # why a problem has no answer, where the job's own message has not said so
    for problem in data.get("problems") or ():
        best = problem.get("best") or {}
        rows.append(
            (
                str(problem["title"]),
                str(problem["state"]),
                _best_us(best),
                _us(best.get("baseline_time_us")),
                f"{best['speedup']:.2f}x" if best.get("speedup") else "-",
                str(best.get("trial_id") or "-"),
                str(best.get("schedule_text") or "-"),
            )
        )
        why = problem.get("message")
        if not best and why and why not in str(data.get("message") or ""):
            notes.append(f"{problem['title']}: {why}")
    print()
    _table(rows)
    if notes:
        print("\n" + "\n".join(notes))


# -- jobs -------------------------------------------------------------------------------------------------


def jobs(parser: argparse.ArgumentParser) -> Run:
    """rooftile jobs"""
    parser.add_argument("--state", metavar="NAME", help="only jobs in this state")
    parser.add_argument("--op", metavar="OP", help="only jobs with a problem of this op")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (default 50)")
    _common(parser)

    def run(args: argparse.Namespace) -> int:
        if args.limit < 1:
            raise FieldError("limit", args.limit, "a whole number from 1")
        found = list(islice(_client(args).jobs(state=args.state, op=args.op), args.limit))
        if args.json:
            print_json({"jobs": found})
            return DONE
        rows = [("JOB", "STATE", "CREATED", "TRIALS", "PROBLEMS")]
        for job in found:
            more = job["problem_count"] - len(job["titles"])
            titles = ", ".join(job["titles"]) + (f" and {more} more" if more > 0 else "")
            when = str(job["created_at"])[:19].replace("T", " ")
            rows.append((str(job["id"]), job["state"], when, str(sum(job["counts"].values())), titles))
        _table(rows) if found else print("No jobs.")
        return DONE

    return run


# -- best and explain -------------------------------------------------------------------------------------


def _lookup(parser: argparse.ArgumentParser) -> None:
    problem_args.add_problem_arguments(parser)
    group = parser.add_argument_group("options of the lookup")
    group.add_argument("--device", metavar="KEY", help="for this device (default: this machine's CPU)")
    group.add_argument("--cache", metavar="NAME", help="policy: cold (default) or warm")
    group.add_argument("--launch", metavar="NAME", help="policy: graph or eager")
    _common(parser)


def _policy(args: argparse.Namespace) -> dict[str, str] | None:
    given = {"cache": args.cache, "launch": args.launch}
    return {name: value for name, value in given.items() if value is not None} or None


def best(parser: argparse.ArgumentParser) -> Run:
    """rooftile best gemm --m 8 ..."""
    _lookup(parser)

    def run(args: argparse.Namespace) -> int:
        problem = parse_problem(problem_args.one_problem(args))
        found = _client(args).best(problem, args.device, _policy(args))
        if args.json:
            print_json(dict(found.data))
        else:
            _show_best(problem.title(), problem.flops, found.data)
        return DONE

    return run


def explain(parser: argparse.ArgumentParser) -> Run:
    """rooftile explain gemm --m 8 ..."""
    _lookup(parser)

    def run(args: argparse.Namespace) -> int:
        problem = parse_problem(problem_args.one_problem(args))
        document = _client(args).explain(problem, args.device, _policy(args))
        if args.json:
            print_json(document)
            return DONE
        served = document["best"]
        _show_best(problem.title(), problem.flops, served)
        _show_evidence(served)
        _show_elsewhere(served, document["problem"])
        return DONE

    return run


def _show_best(title: str, flops: int, data: Mapping[str, Any]) -> None:
    print(f"{title} on {data.get('device') or 'no device'}")
    print(f"  level     {data['level']}: {data['reason']}")
    if data.get("time_us"):
        rate = f", {flops / data['time_us'] / 1e3:.1f} GFLOP/s" if flops else ""
        print(f"  time      {_us(data['time_us'])}{rate}")
    if data.get("baseline_time_us"):
        gain = data["baseline_time_us"] / data["time_us"] if data.get("time_us") else None
        print(f"  baseline  {_us(data['baseline_time_us'])}{_gain(gain)}")
    if data.get("schedule_text"):
        print(f"  schedule  {data['schedule_text']}")
    if data.get("artifact"):
        print(f"  artifact  {data['artifact']}")


def _show_evidence(data: Mapping[str, Any]) -> None:
    schedule = data.get("schedule")
    if schedule:
        print(f"  family    {schedule.get('family')}")
        for group, values in schedule.items():
            if isinstance(values, Mapping) and values:
                print(f"    {group:9} " + ", ".join(f"{name} {value}" for name, value in values.items()))
    for name in ("release_id", "generation", "published_at"):
        if data.get(name) is not None:
            print(f"  {name.removesuffix('_id').removesuffix('_at'):9} {data[name]}")
    for name in ("policy", "toolchain", "noise"):
        if data.get(name):
            # What is nested is for --json: the samples behind a number, not the number.
            plain = {key: value for key, value in data[name].items() if not isinstance(value, Mapping)}
            print(f"  {name:9} " + ", ".join(f"{key} {_short(value)}" for key, value in plain.items()))
    tied = data.get("tie_set") or []
    if tied:
        print(f"  tied with {len(tied)} within the noise")


def _show_elsewhere(served: Mapping[str, Any], known: Mapping[str, Any] | None) -> None:
    if known is None:
        print("  history   the service was never asked to tune this")
        return
    for release in known.get("releases", ()):
        if release["release_id"] == served.get("release_id"):
            continue
        where = f"{release['device']}, policy {' '.join(str(v) for v in release['policy'].values())}"
        print(f"  also      {release['level']} on {where}: {_us(release['time_us'])}")


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


# -- version ----------------------------------------------------------------------------------------------


def version(parser: argparse.ArgumentParser) -> Run:
    """rooftile version"""
    _common(parser, service=False)

    def run(args: argparse.Namespace) -> int:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        found: dict[str, str | None] = {"rooftile": __version__}
        for name in ("rooftile-server", "numpy", "urllib3"):
            try:
                found[name] = installed(name)
            except PackageNotFoundError:
                found[name] = None
        found["python"] = ".".join(map(str, sys.version_info[:3]))
        if args.json:
            print_json(found)
        else:
            for name, text in found.items():
                print(f"{name:16}{text or 'not installed'}")
        return DONE

    return run


# -- text -------------------------------------------------------------------------------------------------


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} us" if value < 1000 else f"{value / 1000:.2f} ms"


def _best_us(best: Mapping[str, Any]) -> str:
    """Its time, or what the cost model expects where nobody timed it."""
    if best.get("time_us") is None and best.get("predicted_us") is not None:
        return f"{_us(best['predicted_us'])} expected"
    return _us(best.get("time_us"))


def _gain(speedup: float | None) -> str:
    return f" ({speedup:.2f}x the Baseline's speed)" if speedup else ""


def _table(rows: Iterable[tuple[str, ...]]) -> None:
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


COMMANDS: dict[str, Callable[[argparse.ArgumentParser], Run]] = {
    "submit": submit,
    "watch": watch,
    "jobs": jobs,
    "cancel": lambda parser: _steer(parser, "cancel"),
    "pause": lambda parser: _steer(parser, "pause"),
    "resume": lambda parser: _steer(parser, "resume"),
    "trial": trial,
    "best": best,
    "explain": explain,
    "version": version,
}
