"""What is the cluster asked to do meanwhile, by whom, and what is expected of it?

People who post jobs by REST, as clients do: again with the same Idempotency-Key until they have an answer.
Some pause and resume, some cancel, some ask twice. What they were told is kept, to be compared in the end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.chaotic.caller import ANSWER_S, Caller, NoAnswer
from bench.chaotic.cluster import Cluster

# Of every eight jobs one is paused for a while and one cancelled.
_WISHES = {2: "pause", 5: "cancel"}
# One of so many is for an arch.
_ARCH_EVERY = 3


@dataclass
class Posted:
    """One job, and what its owner did with it."""

    body: Mapping[str, Any]
    key: str
    token: str
    job_id: int | None = None
    wish: str = "finish"
    """finish, cancel, or pause (and resume)."""
    answers: set[int] = field(default_factory=set)
    """Ids that the service ever gave for it."""
    tries: int = 0


@dataclass
class Crowd:
    """Posts jobs from one thread until there are `count`, spread over `seconds`."""

    cluster: Cluster
    tokens: Sequence[str]
    count: int
    seconds: float
    seed: int
    posted: list[Posted] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Answers that no client should ever get."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._post_all, name="crowd", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Until the last job is posted, and everybody who paused one has resumed it."""
        self._thread.join()

    def ask_again(self) -> None:
        """Whoever asked twice asks once more, now that all is over: the answer must be the one of then."""
        for one in self.posted:
            if one.tries > 1:
                self._submit(one, twice=False)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(ANSWER_S + 1)

    def job_ids(self) -> list[int]:
        """Of the jobs that were taken until now."""
        return [one.job_id for one in tuple(self.posted) if one.job_id is not None]

    def asked_for(self) -> list[tuple[Mapping[str, Any], str]]:
        """Problems of the jobs that were taken until now, each with a device of its job."""
        return [
            (one.body["problem"], one.body["target"]["devices"][0])
            for one in tuple(self.posted)
            if one.job_id is not None and "sweep" not in one.body and "devices" in one.body["target"]
        ]

    # -- the crowd --------------------------------------------------------------------------------------

    def _post_all(self) -> None:
        rng = random.Random(self.seed)
        started = time.monotonic()
        rests: list[tuple[float, Posted]] = []
        for number in range(self.count):
            one = self._draw(rng, number)
            self.posted.append(one)
            self._submit(one, twice=number % 5 == 0)
            if one.wish != "finish":
                rests.append((time.monotonic() + rng.uniform(0.5, 4.0), one))
            due = started + self.seconds * (number + 1) / self.count
            while time.monotonic() < due and not self._stop.is_set():
                rests = self._steer(rests)
                time.sleep(0.1)
        while rests and not self._stop.is_set():
            rests = self._steer(rests)
            time.sleep(0.1)

    def _draw(self, rng: random.Random, number: int) -> Posted:
        key, token = f"chaos-{self.seed}-{number}", rng.choice(self.tokens)
        if number % _ARCH_EVERY == 1:
            # No device of the cluster: compiled and run in the emulator. Its work is all the emulate
            # worker has, and half of what the compile workers have.
            return Posted({
                "problem": {"op": "gemm", "m": 64 + number, "n": 64, "k": 64, "dtype": "f16"},
                "target": {"arch": "sm_80"},
                "budget": {"trials": rng.randrange(3, 7)},
                "seed": number,
            }, key, token)  # fmt: skip
        devices = rng.sample(self.cluster.devices, rng.choice((1, 1, 1, 2, 3)))
        # The small ones are the vendor's to win, most large ones ours: both kinds of release are wanted.
        n, k = rng.choice(((48, 40), (96, 64), (1024, 512), (512, 1024)))
        problem = {"op": "gemm", "n": n, "k": k, "dtype": "f32"}
        body: dict[str, Any] = {
            "target": {"devices": devices},
            "budget": {"trials": len(devices) * rng.randrange(2, 5)},
            "priority": rng.choice((0, 0, 0, -5, -10)),
            "seed": number,
        }
        # Each job has sizes of its own: an equal one would be joined.
        if rng.random() < 0.15:
            body |= {"problem": problem, "sweep": {"m": [number + 1, number + 100]}}
        else:
            body |= {"problem": {**problem, "m": number + 1}}
        wish = _WISHES.get(number % 8, "finish")
        return Posted(body, key, token, wish=wish)

    def _submit(self, one: Posted, *, twice: bool) -> None:
        caller = Caller(self.cluster.url, one.token)
        for _ in range(2 if twice else 1):
            try:
                status, tree = caller.until("POST", "/v1/jobs", one.body, one.key, time.monotonic() + 120)
            except NoAnswer as error:
                self.failures.append(f"POST /v1/jobs was never answered: {error}")
                return
            one.tries += 1
            if status not in (200, 202):
                self.failures.append(f"POST /v1/jobs: {status} {tree}")
                return
            one.job_id = int(tree["id"])
            one.answers.add(one.job_id)

    def _steer(self, rests: list[tuple[float, Posted]]) -> list[tuple[float, Posted]]:
        left = []
        for due, one in rests:
            if time.monotonic() < due or one.job_id is None:
                left.append((due, one))
            elif one.wish == "cancel":
                self._verb(one, "cancel")
            elif one.wish == "pause":
                self._verb(one, "pause")
                one.wish = "resume"
                left.append((time.monotonic() + 2.0, one))
            else:
                self._verb(one, "resume")
        return left

    def _verb(self, one: Posted, verb: str) -> None:
        caller = Caller(self.cluster.url, one.token)
        try:
            status, tree = caller.until(
                "POST", f"/v1/jobs/{one.job_id}:{verb}", None, None, time.monotonic() + 120
            )
        except NoAnswer as error:
            self.failures.append(f"{verb} was never answered: {error}")
            return
        if status not in (200, 202, 409):  # 409: it has ended meanwhile
            self.failures.append(f"{verb}: {status} {tree}")
