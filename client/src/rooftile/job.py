"""What does a program hold that asked for a tuning job?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rooftile.errors import ServiceError, ServiceUnreachable

if TYPE_CHECKING:
    from rooftile.http import Transport

END_STATES = ("done", "failed", "cancelled")

_FIRST_POLL_S = 0.1
_LONGEST_POLL_S = 2.0
# A service that is being restarted is back in seconds; its jobs go on where they were.
_PATIENCE_S = 60.0


class Job:
    """A job of the service. `data` is its JSON as last seen; refresh() looks again."""

    def __init__(
        self, transport: Transport, job_id: int | str, data: Mapping[str, Any] | None = None
    ) -> None:
        self._transport = transport
        self.id = job_id
        self.data: Mapping[str, Any] = dict(data or {})

    @property
    def state(self) -> str:
        """queued, waiting, running, paused, finishing, done, failed or cancelled, as last seen."""
        return str(self.data.get("state", "queued"))

    @property
    def ended(self) -> bool:
        """True when the state, as last seen, is final."""
        return self.state in END_STATES

    def refresh(self) -> Job:
        """Ask the service for the job's state, counts and best."""
        data = self._transport.get(f"/v1/jobs/{self.id}").data
        if not isinstance(data, Mapping) or not isinstance(data.get("state"), str):
            raise ServiceUnreachable(f"the answer to /v1/jobs/{self.id} has no state")
        self.data = data
        return self

    def wait(
        self,
        timeout: float | None = None,
        poll: float | None = None,
        on_change: Callable[[Job], None] | None = None,
    ) -> Job:
        """Until the job ends, however it ends: look at `state`. TimeoutError after `timeout` seconds.

        Asks every `poll` seconds, by default ever more seldom up to two. Rides out a service that is away for
        less than a minute. `on_change` is called with the job each time its data differs.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = poll or _FIRST_POLL_S
        away_since: float | None = None
        while True:
            before = self.data
            try:
                self.refresh()
                away_since = None
            except (ServiceUnreachable, ServiceError) as error:
                if isinstance(error, ServiceError) and error.status < 500:
                    raise
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > _PATIENCE_S:
                    raise
            if on_change is not None and self.data != before:
                on_change(self)
            if self.ended:
                return self
            if end is not None and time.monotonic() + pause > end:
                raise TimeoutError(f"job {self.id} is {self.state} after {timeout} s")
            time.sleep(pause)
            if poll is None:
                pause = min(pause * 1.5, _LONGEST_POLL_S)

    def best(self) -> Mapping[str, Any] | None:
        """The fastest right schedule so far, of the first problem that has one: time_us, baseline_time_us
        (once raced), speedup, schedule, release_id. For each problem: `bests()`."""
        found = self.refresh().data.get("best")
        return found if isinstance(found, Mapping) else None

    def bests(self) -> list[Mapping[str, Any] | None]:
        """The best of each of the job's problems, in their order; None where there is none yet."""
        rows = self.refresh().data.get("problems") or []
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise ServiceUnreachable(f"the answer to /v1/jobs/{self.id} has no list of problems")
        return [row.get("best") for row in rows]

    def trials(self, state: str | None = None, order: str = "oldest") -> Iterator[Mapping[str, Any]]:
        """Every trial of the job, page by page."""
        yield from pages(self._transport, f"/v1/jobs/{self.id}/trials", "trials", state=state, order=order)

    def cancel(self) -> Job:
        """End it; what it found stays."""
        return self._move("cancel")

    def pause(self) -> Job:
        """Stop it for now."""
        return self._move("pause")

    def resume(self) -> Job:
        """Go on with it."""
        return self._move("resume")

    def _move(self, verb: str) -> Job:
        data = self._transport.post(f"/v1/jobs/{self.id}:{verb}", {}).data
        if isinstance(data, Mapping):
            self.data = data
        return self

    def __repr__(self) -> str:
        return f"<Job {self.id}: {self.state}>"


def pages(transport: Transport, path: str, name: str, **query: str | None) -> Iterator[Mapping[str, Any]]:
    """The rows of a list endpoint, however many pages it has."""
    token: str | None = None
    while True:
        data = transport.get(path, {**query, "page_token": token}).data
        rows = data.get(name) if isinstance(data, Mapping) else None
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise ServiceUnreachable(f"the answer to {path} has no list of {name}")
        yield from rows
        before, token = token, data.get("next_page_token")
        if token is None:
            return
        # The same page again would be the same page for ever.
        if not isinstance(token, str) or token == before:
            raise ServiceUnreachable(f"the answer to {path} leads to no next page")
