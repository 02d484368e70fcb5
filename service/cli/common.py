"""How does a command of ours end: with which exit code, and in what words?"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
import typer.main
from rooftile.errors import FieldError, RooftileError

from service.errors import OperationError
from service.paths import prepare_home
from service.settings import get_settings
from service.store.database import Database
from service.store.errors import StoreError

DONE = 0
FAILED = 1
WRONG_USE = 2


class WrongUseError(Exception):
    """The command line itself is wrong."""


def run_app(app: typer.Typer, name: str, argv: Sequence[str]) -> int:
    """Run a Typer app as `rooftile NAME`; every expected failure is one sentence and exit code 1."""
    command = typer.main.get_command(app)

    def call() -> int:
        try:
            command.main(args=list(argv), prog_name=f"rooftile {name}")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else DONE if end.code is None else FAILED
            if code == WRONG_USE and "--json" in argv:  # Typer has told the person on stderr
                print_json({"error": f"The command line is wrong; see rooftile {name} --help."})
            return code
        return DONE

    return guarded(call, as_json="--json" in argv)


def guarded(call: Callable[[], int], *, as_json: bool = False) -> int:
    """Turn the failures that a person can do something about into one sentence on stderr.

    With `as_json` stdout still gets its one document: {"error": sentence, ...}. A bug keeps its traceback.
    """
    try:
        return call()
    except FieldError as error:
        _fail(_one_line(error), as_json, error.to_json())
        return WRONG_USE
    except WrongUseError as error:
        _fail(_one_line(error), as_json)
        return WRONG_USE
    except (OperationError, StoreError, RooftileError) as error:
        return _fail(_one_line(error), as_json)
    except KeyboardInterrupt:
        return _fail("Interrupted.", as_json)
    except BrokenPipeError:
        # Who read our output went away; say nothing more, also not when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" ({error.filename})" if error.filename else ""
            return _fail(f"No room is left on the disk{where}; free some and run this again.", as_json)
        raise


@contextmanager
def opened(name: str) -> Iterator[Database]:
    """The service's database for `rooftile NAME`, which must answer and have our tables."""
    settings = get_settings()
    prepare_home(settings.home)
    database = Database(settings.database_url, name=f"rooftile {name}")
    try:
        database.ping()
        yield database
    finally:
        database.close()


def print_json(document: Any) -> None:
    """The one document of `--json`."""
    sys.stdout.write(json.dumps(document, indent=2, default=str, allow_nan=False) + "\n")
    sys.stdout.flush()


def _fail(sentence: str, as_json: bool, more: Mapping[str, Any] | None = None) -> int:
    print(f"rooftile: {sentence}", file=sys.stderr)
    if as_json:
        print_json({"error": sentence, **(more or {})})
    return FAILED


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
