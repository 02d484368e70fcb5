"""What can go wrong when a job or a release is asked to do something?

    RooftileError
    ├── FieldError                a field of the request is wrong (rooftile.errors)
    └── JobError
        ├── NotFound              no job, job problem or release of that id
        ├── IllegalMove           its state does not allow that
        │   └── NothingToRollBack no earlier release to go back to
        └── NoLegalSchedule       the limits of a job leave its search nothing to try
"""

from __future__ import annotations

from collections.abc import Iterable

from rooftile.errors import RooftileError


class JobError(RooftileError):
    """A job or a release cannot do what was asked."""


class NotFound(JobError):  # a state of the world
    """There is no such thing in the database."""

    def __init__(self, noun: str, ident: str) -> None:
        super().__init__(f"no {noun} {ident}")
        self.noun = noun
        self.ident = ident


class IllegalMove(JobError):
    """The thing exists, but what was asked is not possible in its state."""

    def __init__(self, noun: str, ident: str, state: str, verb: str, allowed: Iterable[str] = ()) -> None:
        self.allowed = tuple(allowed)
        states = ", ".join(self.allowed)
        hint = f"; possible in {states}" if states else ""
        super().__init__(f"{noun} {ident} is {state}: cannot {verb} it{hint}")
        self.noun = noun
        self.ident = ident
        self.state = state
        self.verb = verb


class NothingToRollBack(IllegalMove):
    """No earlier release of the same problem, device and policy can be served again."""


class NoLegalSchedule(JobError):
    """No schedule of any family is legal within the limits that the job sets."""
