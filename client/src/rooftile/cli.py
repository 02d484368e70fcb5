"""What does the command `rooftile` do? Its words, exit codes and `--json`.

submit watch jobs cancel pause resume trial best explain version are here; serve tune worker migrate token
doctor and the like come with the server distribution, through the entry-point group `rooftile.commands`
(name -> main(argv) -> exit code).

Exit codes: 0 done, 2 wrong use, 3 not yet (watch --timeout), 1 anything else. With --json there is exactly
one JSON document on stdout, also when it fails ({"error": sentence, ...}); sentences for people go to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rooftile.errors import FieldError, RooftileError, ServiceError, ServiceUnreachable

DONE, FAILED, WRONG_USE, NOT_YET = 0, 1, 2, 3

GROUP = "rooftile.commands"
SERVER_WORDS = (
    "serve", "tune", "worker", "migrate", "token", "device", "compact", "backup", "restore", "doctor",
)  # fmt: skip


class _UsageError(Exception):
    """The command line itself is wrong."""


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would exit, so that --json has its document then too."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    words = list(sys.argv[1:] if argv is None else argv)
    return _guarded(lambda: _dispatch(words), as_json="--json" in words)


def _dispatch(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        if words[0] in OWN:
            from rooftile import cli_commands  # only now: `rooftile serve` needs none of it

            name = words[0]
            parser = _Parser(prog=f"rooftile {name}", description=OWN[name], allow_abbrev=False)
            run = cli_commands.COMMANDS[name](parser)
            return run(parser.parse_args(words[1:]))
        return _other(words[0], words[1:])
    parser = _Parser(prog="rooftile", description="Tuned kernels at run time.", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    if given.version:
        return _dispatch(["version", *(["--json"] if given.json else [])])
    if not given.help:
        raise _UsageError("say what to do: " + ", ".join([*OWN, *SERVER_WORDS]) + " (see rooftile --help)")
    _help()
    return DONE


OWN = {
    "submit": "Ask the service to tune a problem; returns at once with the job's id.",
    "watch": "Follow a job until it ends. Exit code 0 when it is done, 1 when it failed or was cancelled.",
    "jobs": "List the service's jobs, newest first.",
    "cancel": "End a job; what it found stays. Where others asked for the same it goes on for them.",
    "pause": "Stop a job for now; what is in flight ends.",
    "resume": "Go on with a paused job.",
    "trial": "Show everything about one schedule that was tried: verdicts, counters, evidence.",
    "best": "Show the kernel that is served for a problem on this machine.",
    "explain": "Show everything the service knows about a problem: level, reason, schedule, evidence.",
    "version": "Show versions.",
}
_SERVER_HELP = {
    "serve": "Run the service on this machine.",
    "tune": "Tune a problem in the foreground.",
    "worker": "Run one worker.",
    "migrate": "Bring the database to this version.",
    "token": "Make, list and revoke tokens.",
    "device": "List devices, take one out of service and put it back.",
    "compact": "Drop samples, logs and bytes that nobody needs any more.",
    "backup": "Copy everything that the service knows into one file.",
    "restore": "Bring it back.",
    "doctor": "Say what is here, what is missing and how to get it.",
}


def _help() -> None:
    print("usage: rooftile COMMAND [options]        (rooftile COMMAND --help says more)\n")
    for name, text in OWN.items():
        print(f"  {name:9}{text}")
    print("\nwith the package rooftile-server:\n")
    for name in sorted({*SERVER_WORDS, *_installed()}, key=[*SERVER_WORDS, *_installed()].index):
        print(f"  {name:9}{_SERVER_HELP.get(name, '')}".rstrip())
    print("\nThe service is at ROOFTILE_URL (http://127.0.0.1:8417); its token is in ROOFTILE_TOKEN,")
    print("else in the file that `rooftile serve` left in ROOFTILE_HOME.")


def _installed() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _other(word: str, rest: list[str]) -> int:
    """A word of another distribution."""
    entry = _installed().get(word)
    if entry is None:
        if word in SERVER_WORDS:
            raise RooftileError(f"`rooftile {word}` comes with the server: pip install rooftile-server")
        from rooftile.problem import nearest_name

        near = nearest_name(word, (*OWN, *SERVER_WORDS))
        meant = f"; did you mean {near}?" if near else ""
        raise _UsageError(f"no command {word[:40]!r}{meant} (see rooftile --help)")
    try:
        command: Callable[[list[str]], int | None] = entry.load()
    except ImportError as error:
        raise RooftileError(
            f"`rooftile {word}` cannot start: {error}; install rooftile-server again"
        ) from error
    return command(rest) or DONE


# -- how a command ends -----------------------------------------------------------------------------------


def _guarded(call: Callable[[], int], *, as_json: bool) -> int:
    """Expected failures as one sentence; a bug keeps its traceback."""
    try:
        return call()
    except SystemExit as end:  # argparse after --help
        return end.code if isinstance(end.code, int) else DONE if end.code is None else FAILED
    except (_UsageError, FieldError) as error:
        more = error.to_json() if isinstance(error, FieldError) else {}
        return _fail(WRONG_USE, error, as_json, more)
    except ServiceError as error:
        wrong = error.status in (400, 413, 415, 422)  # what was asked is wrong, and asking again is no use
        hint = "" if error.status != 401 else "; set ROOFTILE_TOKEN, or ROOFTILE_HOME to where the token lies"
        more = {"status": error.status, "problem": error.problem}
        return _fail(
            WRONG_USE if wrong else FAILED, str(error).rstrip(".") + hint if hint else error, as_json, more
        )
    except ServiceUnreachable as error:
        return _fail(FAILED, f"{error}; `rooftile serve` starts it on this machine", as_json)
    except TimeoutError as error:
        return _fail(NOT_YET, error, as_json)
    except RooftileError as error:
        return _fail(FAILED, error, as_json)
    except KeyboardInterrupt:
        return _fail(FAILED, "Interrupted.", as_json)
    except BrokenPipeError:
        # Who read our output went away; say nothing more, also not when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _fail(code: int, error: object, as_json: bool, more: dict[str, Any] | None = None) -> int:
    sentence = " ".join(str(error).split()) or type(error).__name__
    print(f"rooftile: {sentence}", file=sys.stderr)
    if as_json:
        print_json({"error": sentence, **(more or {})})
    return code


def print_json(document: Any) -> None:
    """The one document of --json."""
    print(json.dumps(document, indent=2), flush=True)
