"""What is one step of a job: something to write, a question to the proposer, or a rest?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy.orm import Session

from service.jobs.proposing import Ask


@dataclass(frozen=True)
class Write:
    """Applied in the transaction that looked. `name` is for logs."""

    name: str
    apply: Callable[[Session], None]


@dataclass(frozen=True)
class Question:
    """Asked with no session open; the answer is written in a transaction of its own."""

    job_problem_id: int
    n: int
    """How many schedules are wanted."""
    ask: Callable[[Session], Ask]
    """Says everything that the proposer has to know; worked out once the question is really put."""


class PutAside(Exception):  # not a failure: the question waits
    """Raised by a gate that stayed shut: this question is put later."""


@dataclass(frozen=True)
class Rest:
    """Nothing to do now, and no use to look before so many more trials have ended with a time, a trial has
    ended otherwise, anything else has moved, or so many seconds are over."""

    ends: int
    seconds: float

    def shorter(self, other: Rest) -> Rest:
        """What suits both."""
        return Rest(min(self.ends, other.ends), min(self.seconds, other.seconds))


Step: TypeAlias = Write | Question
