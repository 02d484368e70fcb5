"""What do the log lines of every process look like, and where do they go?

To stderr, as text or, with ROOFTILE_LOG_FORMAT=json, one JSON object a line: `timestamp level logger event`,
who says it (`process worker host pid`) and, where known, what about (`request_id job_id trial_id race_id`).
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import structlog

VARIABLE = "ROOFTILE_LOG_FORMAT"
FORMATS = ("text", "json")

_who: dict[str, Any] = {}


def setup_logs(level: int = logging.INFO) -> None:
    """Plain text is `2026-12-02T10:00:00Z [error    ] event key=value`. stdout stays for results."""
    as_json = os.environ.get(VARIABLE) == "json"
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_who,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if as_json:
        # A traceback as text: as structures structlog shows every local variable, tokens too.
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False, default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    # Libraries (uvicorn, celery, alembic) log through the standard library; same lines, less of them.
    handler = logging.StreamHandler(sys.stderr)
    foreign = [*shared, structlog.stdlib.add_logger_name] if as_json else shared
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=foreign,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    if as_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_last_words


def say_who(**fields: Any) -> None:
    """Who this process is, in every line of JSON that it logs from now on, whichever thread says it. Text is
    read where it is known whose it is."""
    _who.update(fields)


def about(**fields: Any) -> AbstractContextManager[Any]:
    """Inside, every line of this thread says what it is about."""
    return structlog.contextvars.bound_contextvars(**fields)


def _add_who(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if os.environ.get(VARIABLE) == "json":
        for name, value in _who.items():
            event.setdefault(name, value)
        event.setdefault("pid", os.getpid())
    return event


def _log_last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What would have been a bare traceback on stderr."""
    if issubclass(kind, KeyboardInterrupt):
        return
    structlog.get_logger("rooftile").critical("the process ends", exc_info=(kind, error, trace))
