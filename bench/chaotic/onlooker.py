"""What do those see who only read while the storm blows: pages, lookups, artifacts, events?

An answer may fail to come, or be a 503: the service is being tormented. An answer that comes must be right: a
release that was served stays served, bytes have the hash they are named by, and a stream that was cut goes on
after the last id, with nothing left out, nothing told twice and nothing out of order.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.chaotic.caller import ANSWER_S, Caller, NoAnswer

PAGES = ("/v1/jobs", "/v1/devices", "/v1/releases", "/healthz", "/readyz")
_EVERY_S = 0.1
_STREAM_S = 3.0
"""A stream is read for so long, and then somewhere in the midst it is cut: as by a proxy, or a browser that
goes to sleep."""
_END_S = 60.0


@dataclass
class Told:
    """What a stream told of one job, over all its connections."""

    ids: list[int] = field(default_factory=list)
    connections: int = 0
    ended: bool = False


@dataclass
class Onlooker:
    """Reads from two threads until `stop`: one asks, one follows the events of job after job."""

    url: str
    token: str
    asked_for: Callable[[], Sequence[tuple[Mapping[str, Any], str]]]
    """Problems, with a device each, that jobs were posted for until now."""
    jobs: Callable[[], Sequence[int]]
    """Ids of the jobs until now."""
    failures: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=lambda: {"page": 0, "lookup": 0, "artifact": 0})
    streams: dict[int, Told] = field(default_factory=dict)
    """By job."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._served: dict[tuple[str, str], int] = {}
        self._threads = [
            threading.Thread(target=self._ask_all, name="onlooker", daemon=True),
            threading.Thread(target=self._follow_all, name="follower", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """When all jobs have ended: every question once more, and every stream to its end."""
        caller = Caller(self.url, self.token)
        for problem, device in self.asked_for():
            try:
                self.look_up(caller, problem, device)
            except NoAnswer as error:
                self.failures.append(f"the storm is over, and a lookup has no answer: {error}")
        deadline = time.monotonic() + _END_S
        while self._unfinished() and time.monotonic() < deadline:
            time.sleep(_EVERY_S)
        self.failures += [f"the events of job {one} have no end" for one in self._unfinished()]

    def _unfinished(self) -> list[int]:
        return [one for one in self.jobs() if one not in self.streams or not self.streams[one].ended]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(ANSWER_S + _STREAM_S)

    # -- questions --------------------------------------------------------------------------------------

    def _ask_all(self) -> None:
        caller = Caller(self.url, self.token)
        for number in itertools.count():
            if self._stop.wait(_EVERY_S):
                return
            try:
                if number % 2:
                    self._page(caller, PAGES[number // 2 % len(PAGES)])
                elif asked := self.asked_for():
                    self.look_up(caller, *asked[number // 2 % len(asked)])
            except NoAnswer:
                continue

    def _page(self, caller: Caller, path: str) -> None:
        status, tree = caller.call("GET", path)
        self.answers["page"] += 1
        if status != 200:
            self.failures.append(f"GET {path}: {status} {tree}")

    def look_up(self, caller: Caller, problem: Mapping[str, Any], device: str) -> None:
        """Ask which kernel to use, and for its bytes where there is one."""
        body = {"problem": problem, "device": device, "policy": {"cache": "cold", "launch": "eager"}}
        status, tree = caller.call("POST", "/v1/best", body)
        self.answers["lookup"] += 1
        what = f"POST /v1/best for {problem} on {device}"
        if status != 200:
            self.failures.append(f"{what}: {status} {tree}")
            return
        key, release = (str(tree["problem_key"]), device), tree["release_id"]
        before = self._served.get(key)
        if before is not None and (release is None or release < before):
            self.failures.append(f"{what}: release {before} was served, and now it is {release}")
        if release is not None:
            self._served[key] = release
        if tree["artifact"] is not None:
            self.fetch(caller, str(tree["artifact"]))

    def fetch(self, caller: Caller, sha256: str) -> None:
        """The bytes of an artifact that is served."""
        status, data = caller.read(f"/v1/artifacts/{sha256}")
        self.answers["artifact"] += 1
        if status != 200:
            self.failures.append(f"GET /v1/artifacts/{sha256[:12]}: {status} {data[:200]!r}")
        elif hashlib.sha256(data).hexdigest() != sha256:
            self.failures.append(f"GET /v1/artifacts/{sha256[:12]}: its bytes have another hash")

    # -- streams ----------------------------------------------------------------------------------------

    def _follow_all(self) -> None:
        while not self._stop.wait(_EVERY_S):
            for job_id in self._unfinished()[:1]:
                self.follow(job_id)

    def follow(self, job_id: int) -> None:
        """The events of one job to their end, over as many connections as it takes."""
        told = self.streams.setdefault(job_id, Told())
        while not told.ended and not self._stop.is_set():
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                self._read(job_id, told)
            # cut: it goes on after the last id
            self._stop.wait(0.2)

    def _read(self, job_id: int, told: Told) -> None:
        caller = Caller(self.url, self.token, timeout_s=_STREAM_S)
        last = told.ids[-1] if told.ids else 0
        with caller.stream(f"/v1/jobs/{job_id}/events", last) as answer:
            if answer.status in (429, 503):
                return
            if answer.status != 200:
                self.failures.append(f"the events of job {job_id}: {answer.status} {answer.read(200)!r}")
                told.ended = True
                return
            told.connections += 1
            event, number, until = "", 0, time.monotonic() + _STREAM_S
            while time.monotonic() < until and (line := answer.readline()):
                name, _, value = line.decode().strip().partition(": ")
                if name == "event":
                    event = value
                elif name == "id":
                    number = int(value)
                elif not name and event:
                    if event == "end":
                        told.ended = True
                        return
                    self._event(job_id, told, number)
                    event = ""

    def _event(self, job_id: int, told: Told, number: int) -> None:
        if told.ids and number <= told.ids[-1]:
            self.failures.append(f"the events of job {job_id}: {number} came after {told.ids[-1]}")
        told.ids.append(number)

    def compare(self, written: Callable[[int], Sequence[int]]) -> None:
        """With the ids that were really written for a job, of each that was followed to its end."""
        for job_id, told in self.streams.items():
            if told.ended and told.ids != (really := list(written(job_id))):
                missing = sorted(set(really) - set(told.ids))[:5]
                self.failures.append(
                    f"the events of job {job_id}: {len(told.ids)} were told and {len(really)} are written, "
                    f"without {missing}"
                )

    def rows(self) -> list[dict[str, Any]]:
        """How much was seen."""
        followed = [one for one in self.streams.values() if one.ended]
        seen = {**self.answers, "stream": len(followed), "event": sum(len(one.ids) for one in followed)}
        seen["resumed"] = sum(max(0, one.connections - 1) for one in self.streams.values())
        return [{"kind": "seen", "what": what, "count": count} for what, count in seen.items()]
