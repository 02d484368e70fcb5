"""How does a command line spell a problem and a job? Shared by `submit`, `best`, `explain` and `tune`.

    gemm --m 8 --n 4096 --k 4096 --dtype f32 [--layout-b nk --bias n --activation gelu ...]
    attention --heads-q 32 --seq-q 1024 --head-dim 128 --dtype f32 [--mask causal ...]
    --spec FILE

Only what was given goes into the JSON; defaults and rules stay where they are, in rooftile.problem and in the
service, so that a wrong value is refused in the same words here and there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftile.errors import MISSING, FieldError
from rooftile.problem import OPEN_SIZES, OPS, nearest_name

MAX_SPEC_BYTES = 2**20

# Option -> path in the problem's JSON. The names of options are the JSON's, with - for _ and for the dots.
_GEMM = {
    "m": "m", "n": "n", "k": "k", "batch": "batch", "dtype": "dtype",
    "dtype-a": "dtype.a", "dtype-b": "dtype.b", "dtype-acc": "dtype.acc", "dtype-c": "dtype.c",
    "layout-a": "layout.a", "layout-b": "layout.b", "layout-c": "layout.c",
    "ld-a": "ld.a", "ld-b": "ld.b", "ld-c": "ld.c",
    "align-a": "align.a", "align-b": "align.b", "align-c": "align.c",
    "scale-a": "scale.a", "scale-b": "scale.b", "alpha": "alpha", "beta": "beta",
    "bias": "epilogue.bias", "activation": "epilogue.activation", "residual": "epilogue.residual",
}  # fmt: skip
_ATTENTION = {
    "heads-q": "heads_q", "heads-kv": "heads_kv", "seq-q": "seq_q", "seq-kv": "seq_kv", "batch": "batch",
    "head-dim": "head_dim", "head-dim-v": "head_dim_v", "dtype": "dtype",
    "dtype-q": "dtype.q", "dtype-kv": "dtype.kv", "dtype-acc": "dtype.acc", "dtype-out": "dtype.out",
    "layout": "layout", "mask": "mask", "window": "window", "scale": "scale", "softcap": "softcap",
    "sinks": "sinks", "return-lse": "return_lse", "scale-q": "scales.q", "scale-k": "scales.k",
    "scale-v": "scales.v", "kv-kind": "kv.kind", "page-size": "kv.page_size",
}  # fmt: skip
_OPTIONS = {"gemm": _GEMM, "attention": _ATTENTION}

_FLAGS = {"residual", "sinks", "return-lse"}
_NUMBERS = {
    "m", "n", "k", "batch", "ld-a", "ld-b", "ld-c", "align-a", "align-b", "align-c", "heads-q", "heads-kv",
    "seq-q", "seq-kv", "head-dim", "head-dim-v", "window", "scale", "softcap", "page-size",
}  # fmt: skip
_SCALES = {"scale-a", "scale-b", "scale-q", "scale-k", "scale-v"}
_HELP = {
    "m": "rows of A and of the result; a list (1,2,4) or a range (1..512) is a sweep",
    "dtype": "of the inputs: f64 f32 tf32 f16 bf16 e4m3 e5m2 e2m1 s8 u8",
    "layout-b": "kn or nk; the last letter is contiguous",
    "scale-a": "DTYPE:BLOCK, as f32:tensor or ue8m0:32",
    "alpha": "zero, one or any",
    "beta": "zero, one or any",
    "bias": "n",
    "activation": "relu, gelu, gelu_tanh or silu",
    "residual": "add a residual last",
    "mask": "none, causal or window",
}


def add_problem_arguments(parser: argparse.ArgumentParser, *, spec: bool = True) -> None:
    """The words and options of a problem; with `spec` also --spec FILE. Read them with `problem_and_sweep`
    or `job_body`."""
    allowed = "gemm or attention" + (", unless --spec gives the problem" if spec else "")
    parser.add_argument("op", nargs="?", metavar="OP", help=allowed)
    if spec:
        text = "JSON: a problem, a list of problems, or the body of POST /v1/jobs; - is stdin"
        parser.add_argument("--spec", metavar="FILE", help=text)
    for op, options in _OPTIONS.items():
        group = parser.add_argument_group(f"options of {op}")
        for option in options:
            if op != "gemm" and option in _GEMM:
                continue  # --batch and --dtype belong to both
            name = f"problem_{option}"
            if option in _FLAGS:
                group.add_argument(
                    f"--{option}", dest=name, action="store_const", const=True, help=_HELP.get(option)
                )
            else:
                metavar = "N" if option in _NUMBERS else "NAME"
                group.add_argument(f"--{option}", dest=name, metavar=metavar, help=_HELP.get(option))


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """How to tune: target, budget, policy. Read together with the problem by `job_body`."""
    group = parser.add_argument_group("options of the job")
    add = group.add_argument
    add("--device", metavar="KEY", help="device to tune on (default auto: the only one there is)")
    add("--arch", metavar="NAME", help="compile and rank for an arch without measuring")
    add("--trials", metavar="N", help="most schedules to try")
    add("--seconds", metavar="S", help="most seconds to spend (of these up to 40 %% are kept for the race,"
        " or for the emulator's proof of the finalists)")
    add("--device-seconds", metavar="S", help="most seconds of the device to spend")
    add("--cache", metavar="NAME", help="policy: cold (default) or warm")
    add("--launch", metavar="NAME", help="policy: graph or eager")
    add("--seed", metavar="N", help="seed of the search and of the inputs")
    add("--force", action="store_const", const=True, help="tune again what is tuned already")
    add("--priority", metavar="N", help="before (above 0) or after other jobs")
    add("--family", action="append", metavar="NAME", help="only this family; may be repeated")
    add("--param", action="append", metavar="NAME=VALUES", help="hold a parameter to these values")
    add("--emulate", metavar="NAME", help="structure, finalists, all or never")


def problem_and_sweep(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The problem's JSON without its swept sizes, and the sweep: size name -> values, or a range (often
    empty)."""
    op = args.op
    if op is None:
        raise FieldError("op", MISSING, f"one of {', '.join(OPS)}")
    if op not in OPS:
        raise FieldError("op", op, f"one of {', '.join(OPS)}", nearest_name(op, OPS))
    options = _OPTIONS[op]
    problem: dict[str, Any] = {"op": op}
    sweep: dict[str, Any] = {}
    for option, value in _given(args).items():
        path = options.get(option)
        if path is None:
            other = next(o for o in OPS if option in _OPTIONS[o])
            raise FieldError(option, value, f"left out: it is an option of {other}, not of {op}")
        if option in _NUMBERS and ".." in value and path in OPEN_SIZES[op]:
            low, _, high = value.partition("..")
            sweep[path] = {"from": number(low), "to": number(high)}
            continue
        if option in _NUMBERS:
            values = [number(text) for text in value.split(",")]
            if len(values) > 1:
                if path not in OPEN_SIZES[op]:
                    listed = " and ".join(OPEN_SIZES[op])
                    raise FieldError(path, value, f"one number; of {op} only {listed} may be lists")
                sweep[path] = values
                continue
            value = values[0]
        elif option in _SCALES:
            dtype, _, block = value.partition(":")
            value = {"dtype": dtype, "block": number(block)} if block else {"dtype": dtype}
        _put(problem, path, value)
    return problem, sweep


def one_problem(args: argparse.Namespace) -> dict[str, Any]:
    """The problem's JSON where there may be only one."""
    if getattr(args, "spec", None) is not None:
        if args.op is not None:
            raise FieldError("spec", args.spec, "left out where the problem is spelled out")
        body = read_spec(args.spec)
        if set(body) != {"problem"}:
            raise FieldError("spec", args.spec, "a file with one problem")
        return dict(body["problem"])
    problem, sweep = problem_and_sweep(args)
    for name, values in sweep.items():
        listed = values if isinstance(values, list) else values.values()
        raise FieldError(name, ",".join(map(str, listed)), "one number here")
    return problem


def job_body(args: argparse.Namespace) -> dict[str, Any]:
    """The body of POST /v1/jobs. Options given beside --spec take the place of what the file says."""
    if args.spec is not None:
        if args.op is not None or _given(args):
            raise FieldError("spec", args.spec, "left out where the problem is spelled out")
        body = read_spec(args.spec)
    else:
        problem, sweep = problem_and_sweep(args)
        body = {"problem": problem} | ({"sweep": sweep} if sweep else {})
    if args.device is not None and args.arch is not None:
        raise FieldError("arch", args.arch, "left out where --device is given")
    if args.device is not None or args.arch is not None:
        body.pop("device", None)
        body["target"] = {"device": args.device} if args.device is not None else {"arch": args.arch}
    for option, path in {
        "trials": "budget.trials",
        "seconds": "budget.seconds",
        "device_seconds": "budget.device_seconds",
        "cache": "policy.cache",
        "launch": "policy.launch",
        "seed": "seed",
        "force": "force",
        "priority": "priority",
        "family": "families",
        "emulate": "emulate",
    }.items():
        value = getattr(args, option)
        if value is not None:
            plain = option in ("cache", "launch", "emulate")
            _put(body, path, value if plain or not isinstance(value, str) else number(value))
    for text in args.param or ():
        name, separator, values = text.partition("=")
        if not separator:
            raise FieldError("params", text, "NAME=VALUE or NAME=VALUE,VALUE")
        choices = [_word(value) for value in values.split(",")]
        _put(body, f"params.{name}", choices[0] if len(choices) == 1 else choices)
    return body


def read_spec(path: str) -> dict[str, Any]:
    """A job's body from a file: {"problem"}, {"problem", "sweep", ...} or {"problems": [...]}. FieldError of
    field `spec` for a file that cannot be read or is no strict JSON."""
    try:
        data = sys.stdin.buffer.read(MAX_SPEC_BYTES + 1) if path == "-" else _read(Path(path))
    except OSError as error:
        raise FieldError("spec", path, f"a readable file ({error.strerror or error})") from None
    if len(data) > MAX_SPEC_BYTES:
        raise FieldError("spec", path, f"a file of at most {MAX_SPEC_BYTES} bytes")
    try:
        parsed = json.loads(data, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise FieldError("spec", path, f"a file with JSON in it ({error})") from None
    if isinstance(parsed, list):
        return {"problems": [{"problem": problem} for problem in parsed]}
    if not isinstance(parsed, Mapping):
        raise FieldError("spec", path, "an object or a list of problems")
    return {"problem": dict(parsed)} if "op" in parsed else dict(parsed)


def number(text: str) -> int | float | str:
    """A number as JSON has it. What is none stays text, for the problem's own check to refuse by name."""
    # int() would take 1_000 and digits of other scripts; a size is written in plain ones.
    if not text.isascii() or "_" in text or text != text.strip():
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _word(text: str) -> int | float | str | bool:
    return {"true": True, "false": False}.get(text, number(text))


def _given(args: argparse.Namespace) -> dict[str, Any]:
    prefix = "problem_"
    return {n[len(prefix) :]: v for n, v in vars(args).items() if n.startswith(prefix) and v is not None}


def _put(target: dict[str, Any], path: str, value: Any) -> None:
    """Set a.b in nested objects. A bare dtype before dtype.a becomes {"a": it}: the rest follows from a."""
    *parents, last = path.split(".")
    for name in parents:
        inner = target.get(name)
        if isinstance(inner, str):
            first = "q" if target.get("op") == "attention" else "a"
            inner = {first: inner}
        target[name] = inner = dict(inner) if isinstance(inner, Mapping) else {}
        target = inner
    target[last] = value


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_SPEC_BYTES + 1)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in an object")
    return found
