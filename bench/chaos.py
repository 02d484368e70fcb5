"""Does a cluster lose or double anything while everything around it fails?

`python -m bench.chaos --minutes M --seed S` starts a cluster (API, two search, two compile, one emulate and
three measure workers whose devices are aliases of this CPU), lets people post jobs, and strikes it with
faults of every kind, drawn from the seed. When the time is over nothing more is done to it: it ends its jobs,
is stopped in order, and every row, process, lock and release is looked at. Releases never leave the run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.chaotic.audit import Findings, audit_host, audit_leases, audit_releases, audit_store
from bench.chaotic.caller import Caller, NoAnswer
from bench.chaotic.clock import preload
from bench.chaotic.cluster import LEASE_S, Cluster, cluster
from bench.chaotic.faults import FAULTS, WORKERS, Hit
from bench.chaotic.onlooker import Onlooker
from bench.chaotic.process import OURS
from bench.chaotic.work import Crowd
from bench.common import BenchError, bench_lock, environment, say, write
from bench.servers.postgres import PostgresMissingError
from bench.servers.valkey import ValkeyMissingError
from service.store import events, jobs, tokens
from service.store.enums import Scope
from service.store.errors import StoreError

UP_S = 120.0
STARTS_MOST = 5
"""Of a process before anything is done to it."""
EVERY_S = 2.5
"""A fault begins so often; those that last overlap."""
AT_ONCE = 3
DRAIN_MOST_S = 1800.0
STILL_S = 150.0
"""Without any event: what has not ended by then never will."""
STOP_S = 20.0
LISTED_S = 1.5 * LEASE_S + 1.0
"""For so long one that was killed is listed, and its device kept."""
QUICK_MINUTES = 1.0
JOBS_LEAST = 30


def plan(seed: int) -> Iterator[tuple[str, float]]:
    """Which kind of fault comes next, and after how many seconds the one after it. Each kind comes once
    before any comes again."""
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(sorted(FAULTS), len(FAULTS)):
            yield kind, rng.uniform(0.4, 1.6) * EVERY_S


@dataclass
class Storm:
    """What was struck and when."""

    seed: int
    hits: list[dict[str, Any]] = field(default_factory=list)
    misses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Of ours: a fault that could not be made."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def by_kind(self) -> Counter[str]:
        return Counter(str(hit["fault"]) for hit in self.hits)

    def by_process(self) -> Counter[str]:
        """Hits of each kind of process."""
        return Counter(str(hit["of"]) for hit in self.hits)

    def blow(self, tormented: Cluster, seconds: float) -> None:
        """Strike for so long."""
        started = time.monotonic()
        places = threading.Semaphore(AT_ONCE)
        threads: list[threading.Thread] = []
        for number, (kind, pause_s) in enumerate(plan(self.seed)):
            if time.monotonic() - started >= seconds:
                break
            args = (tormented, kind, random.Random(self.seed * 100_003 + number), started, places)
            thread = threading.Thread(target=self._strike, args=args, name=f"fault-{kind}", daemon=True)
            places.acquire()
            thread.start()
            threads.append(thread)
            time.sleep(pause_s)
        for thread in threads:
            thread.join(60.0)

    def _strike(
        self, tormented: Cluster, kind: str, rng: random.Random, started: float, places: threading.Semaphore
    ) -> None:
        at = time.monotonic() - started
        hit: Hit | None = None
        try:
            hit = FAULTS[kind](tormented, rng)
        except Exception as error:  # noqa: BLE001 - a fault of ours is told, and ends nothing
            with self.lock:
                self.faults.append(f"{kind}: {type(error).__name__}: {error}")
        finally:
            places.release()
        with self.lock:
            if hit is None:
                self.misses[kind] += 1
                return
            row = {"fault": kind, "at_s": round(at, 1), "target": hit.target, "what": hit.what}
            self.hits.append({**row, "holding": hit.holding, "of": hit.of})
            tormented.struck[hit.of] += 1
        say(f"{at:6.1f} s  {kind}: {hit.what} ({hit.target})")


@dataclass
class Outcome:
    """Of a whole run."""

    storm: Storm
    found: Findings
    failures: list[str]
    """Answers that no client should get, and workers that did not end as they should."""
    seconds: float
    lives: list[dict[str, Any]] = field(default_factory=list)
    """Of each process: how often it was started, and with which statuses it ended before its last order."""
    deaths: list[dict[str, Any]] = field(default_factory=list)
    """Of processes that nobody told to end and no SIGKILL of ours ended."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    """By the onlooker."""

    def figures(self) -> dict[str, float | int | None]:
        found = self.found
        return {
            "faults": len(self.storm.hits),
            "kinds_least": min(self.storm.by_kind().get(kind, 0) for kind in FAULTS),
            "processes_least": min(self.storm.by_process().get(kind, 0) for kind in (*WORKERS, "api")),
            "jobs": found.jobs,
            "trials": found.trials,
            "releases": found.releases,
            "releases_ours": found.releases_ours,
            "kernels_run": found.kernels_run,
            "jobs_unexplained": len(found.jobs_unexplained),
            "trials_lost": len(found.trials_lost),
            "trials_double": len(found.trials_double),
            "orphans": len(found.orphans),
            "releases_wrong": len(found.releases_wrong),
            "wrong_answers": len(self.failures),
            "ends_by_themselves": len(self.deaths),
            "ends_unexplained": len(self._unexplained()),
        }

    def _unexplained(self) -> list[str]:
        return [
            f"{one['name']} ended with {one['status']}: {one['said']}"
            for one in self.deaths
            if one["why"] is None
        ]

    def sentences(self) -> list[str]:
        """All that is wrong."""
        found = self.found
        return [
            *found.jobs_unexplained, *found.trials_lost, *found.trials_double, *found.orphans,
            *found.releases_wrong, *self.failures, *self._unexplained(), *self.storm.faults,
        ]  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        counts = self.storm.by_kind()
        kinds = [
            {"kind": "fault", "fault": kind, "hits": counts.get(kind, 0), "misses": self.storm.misses[kind]}
            for kind in FAULTS
        ]
        struck = self.storm.by_process()
        processes = [
            {"kind": "struck", "process": of, "hits": struck.get(of, 0)} for of in (*WORKERS, "api", "server")
        ]
        hits = [{"kind": "hit", **hit} for hit in self.storm.hits]
        ends = [
            {"kind": "end", "of": of, "state": state, "reason": reason, "count": count}
            for (of, state, reason), count in sorted(self.found.ends.items())
        ]
        return [
            *kinds,
            *processes,
            *hits,
            *ends,
            *self.lives,
            *self.deaths,
            *self.seen,
            *({"kind": "wrong", "text": text} for text in self.sentences()),
        ]


def run(folder: Path, minutes: float, seed: int, count: int) -> Outcome:
    """Start, torment, let it end, stop and look. BenchError where the cluster does not come up."""
    started = time.monotonic()
    storm = Storm(seed)
    with cluster(folder) as tormented:
        _wait_until_up(tormented)
        people = [_token(tormented, name) for name in ("ann", "bob", "cem")]
        crowd = Crowd(tormented, people, count, 0.8 * 60 * minutes, seed)
        onlooker = Onlooker(tormented.url, tormented.token, crowd.asked_for, crowd.job_ids)
        crowd.start()
        onlooker.start()
        storm.blow(tormented, 60 * minutes)
        crowd.wait()
        say("the storm is over; the jobs end")
        _drain(tormented)
        crowd.ask_again()
        crowd.stop()
        onlooker.finish()
        onlooker.stop()
        with tormented.database.read() as s:
            onlooker.compare(
                lambda job_id: [row.id for row in events.after(s, 0, job_id=job_id, limit=100_000)]
            )
        found, failures = Findings(), [*crowd.failures, *onlooker.failures]
        lives = [
            {
                "kind": "process",
                "name": one.name,
                "starts": one.starts,
                "ends": sorted(end.status for end in one.ends),
            }
            for one in tormented.processes
        ]
        deaths = [
            {"kind": "death", "name": one.name, "status": end.status, "why": end.why, "said": end.said}
            for one in tormented.processes
            for end in one.ends
            if end.why != OURS
        ]
        _bury(tormented)
        failures += _stop(tormented)
        with tormented.database.read() as s:
            audit_store(s, crowd.posted, found)
            audit_leases(s, found)
        audit_host(tormented, found)
        _serve_again(tormented)
        audit_releases(tormented, found)
        failures += _stop(tormented, "api")
    return Outcome(storm, found, failures, time.monotonic() - started, lives, deaths, onlooker.rows())


def _wait_until_up(tormented: Cluster) -> None:
    caller = Caller(tormented.url, tormented.token)
    deadline = time.monotonic() + UP_S
    while True:
        try:
            _, tree = caller.call("GET", "/v1/devices")
            if sum(bool(one["connected"]) for one in tree["devices"]) == len(tormented.devices):
                return
        except NoAnswer:
            pass
        if time.monotonic() > deadline or any(one.starts > STARTS_MOST for one in tormented.processes):
            told = "\n".join(f"== {one.name}\n{one.said(1000)}" for one in tormented.processes)
            raise BenchError(f"the cluster does not come up\n{told}")
        time.sleep(0.2)


def _token(tormented: Cluster, name: str) -> str:
    with tormented.database.begin() as s:
        return tokens.create(s, name, {Scope.SUBMIT})[1]


def _drain(tormented: Cluster) -> None:
    """Wait until every job has ended, or nothing has happened for long; what has not by then is found by the
    audit."""
    began = moved_at = time.monotonic()
    seen = -1
    while time.monotonic() < min(moved_at + STILL_S, began + DRAIN_MOST_S):
        time.sleep(0.5)
        try:
            with tormented.database.read() as s:
                if not any(job.open for job in jobs.listing(s, limit=1000).rows):
                    return
                latest = events.latest_id(s)
        except StoreError:
            continue
        if latest != seen:
            seen, moved_at = latest, time.monotonic()


def _bury(tormented: Cluster) -> None:
    """Wait until those who were killed last are known to be dead: what is listed after the others have ended
    in order was then left by one of these."""
    ends = [end.at_s for one in tormented.processes for end in one.ends]
    known_at = max(ends, default=0.0) + LISTED_S
    time.sleep(max(0.0, known_at - time.monotonic()))


def _stop(tormented: Cluster, *kinds: str) -> list[str]:
    """End them in order; what they should not have done."""
    told = []
    if not kinds:
        tormented.tender.stop()
    chosen = tormented.kinds(*kinds) if kinds else tormented.processes
    for process in chosen:
        process.rest()
    for process in chosen:
        try:
            status = process.rested(STOP_S)
        except subprocess.TimeoutExpired:
            told.append(f"{process.name} did not end within {STOP_S:.0f} s of SIGTERM")
            continue
        if status != 0:
            told.append(f"{process.name} ended with {status}: {process.said(300)}")
    return told


def _serve_again(tormented: Cluster) -> None:
    """The API alone, to fetch what is served."""
    tormented.named("api").start()
    deadline = time.monotonic() + UP_S
    while True:
        try:
            Caller(tormented.url, tormented.token).call("GET", "/readyz")
            return
        except NoAnswer:
            if time.monotonic() > deadline:
                raise BenchError("the API does not come back") from None
            time.sleep(0.2)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=12.0, help="how long faults strike (default 12)")
    parser.add_argument("--seed", type=int, default=1, help="of jobs and faults")
    parser.add_argument("--jobs", type=int, default=None, help="how many (default: 3 a minute, 30 at least)")
    parser.add_argument("--keep", type=Path, default=None, help="folder for logs, kept")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MINUTES:g} minute and 8 jobs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers and mounts go too
    os.environ["ROOFTILE_LEASE_S"] = str(LEASE_S)  # who lives is judged here as there
    minutes = QUICK_MINUTES if options.quick else options.minutes
    count = options.jobs or (8 if options.quick else max(JOBS_LEAST, round(3 * minutes)))
    try:
        with bench_lock(), tempfile.TemporaryDirectory(prefix="rooftile-chaos-") as folder:
            kept = options.keep or Path(folder)
            kept.mkdir(parents=True, exist_ok=True)
            outcome = run(kept, minutes, options.seed, count)
    except (BenchError, PostgresMissingError, ValkeyMissingError) as error:
        print(f"bench.chaos: {error}", file=sys.stderr)
        return 1
    figures = outcome.figures()
    for kind, hits in sorted(outcome.storm.by_process().items()):
        say(f"{kind:>10}: struck {hits} times")
    for kind, hits in sorted(outcome.storm.by_kind().items()):
        say(f"{kind:>10}: {hits} hits, {outcome.storm.misses[kind]} misses")
    for name, value in figures.items():
        print(f"{name}: {value}")
    for sentence in outcome.sentences()[:40]:
        print(f"  wrong: {sentence}")
    told = {"minutes": minutes, "seed": options.seed, "lease_s": LEASE_S, "seconds": round(outcome.seconds)}
    told["clocks_moved"] = preload() is not None
    write(options.json, figures, outcome.rows(), environment(**told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
