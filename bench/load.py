"""What does one API process bear, with a full database behind it?

Postgres with 100,000 trials and 10,000 releases; one API process on one core, the load from a process on
another. Lookups are those of clients: the same problems again and again, by `POST /v1/best`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import urllib3

from bench.common import BenchError, bench_lock, environment, say, write
from bench.loading.seed import DEVICE, Seeded, seed
from bench.servers.postgres import Postgres, PostgresMissingError, free_port
from bench.servers.spawn import spawn
from bench.servers.valkey import Valkey, ValkeyMissingError
from service.jobs.submit import submit
from service.store import events, migrate, trials
from service.store.database import Database

PROBLEMS = 10_000
QUICK_PROBLEMS = 1_000
RATE = 500
STREAMS = 500
CONNECTIONS = 32
SUBMITTERS = 8
GROWTH_S = 600.0
PAGE_TIMES = 15
API_CPU, LOAD_CPU = 0, 1
PARTS = ("database", "index", "steady", "streams", "submits", "pages", "memory")
"""What `--only` takes, in the order in which they run."""
FIGURES = (
    "lookup_p99_ms_500",
    "lookup_p99_ms_500_beside_streams",
    "lookups_per_s",
    "lookups_per_s_db",
    "submits_per_s",
    "page_ms",
    "rss_growth_mb",
    "streams",
    "stream_delay_ms",
)


@dataclass
class Served:
    """An API process with its database."""

    database: Database
    seeded: Seeded
    port: int
    token: str
    process: subprocess.Popen[bytes]
    log: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def order(self, kind: str, cpu: int = LOAD_CPU, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "host": "127.0.0.1", "port": self.port, "token": self.token, "cpu": cpu, **more}

    def closed(
        self, path: str, bodies: Sequence[str], seconds: float, connections: int, *, once: bool = False
    ) -> dict[str, Any]:
        """An order of as many requests as are answered."""
        more: dict[str, Any] = {"path": path, "bodies": bodies, "seconds": seconds}
        return self.order("closed", **more, connections=connections, once=once)

    def open(self, bodies: Sequence[str], seconds: float) -> dict[str, Any]:
        """An order of lookups at a fixed rate."""
        more: dict[str, Any] = {"path": "/v1/best", "bodies": bodies, "seconds": seconds}
        return self.order("open", **more, connections=CONNECTIONS, rate=RATE)

    def load(self, what: str, order: Mapping[str, Any]) -> dict[str, Any]:
        """Run one load to its end, and keep its row."""
        with _generator(order) as process:
            assert process.stdout is not None
            result: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
        if process.wait() != 0 or not result:
            raise BenchError(f"the load {what!r} failed")
        row = {name: value for name, value in result.items() if name not in ("pages", "seen")}
        self.rows.append({"kind": "load", "what": what, **row})
        say(f"{what}: {row}")
        return result

    def rss_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(text[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, no ten minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with bench_lock(), tempfile.TemporaryDirectory(prefix="rooftile-load-") as folder:
            figures, rows, told = run(Path(folder), options.only or PARTS, quick=options.quick)
    except (BenchError, PostgresMissingError, ValkeyMissingError) as error:
        print(f"bench.load: {error}", file=sys.stderr)
        return 1
    for name, value in figures.items():
        print(f"{name}: {value}")
    write(options.json, figures, rows, environment(**told))
    return 0


Figures: TypeAlias = dict[str, float | int | None]


def run(folder: Path, parts: Sequence[str], *, quick: bool) -> tuple[Figures, list[Any], dict[str, Any]]:
    """Figures (None: of a part that was not run), rows and what else belongs to the environment."""
    figures: Figures = dict.fromkeys(FIGURES)
    with served(folder, QUICK_PROBLEMS if quick else PROBLEMS) as api:
        bodies = _lookups(api.seeded)
        seconds = 5.0 if quick else 20.0
        # Nobody has asked for any of these: each is one answer from the database. It runs always, so that
        # the parts after it find the index as it is in a service that is in use.
        first = api.load(
            "lookups from Postgres",
            api.closed("/v1/best", bodies, 120, CONNECTIONS, once=True),
        )
        if "database" in parts:
            figures["lookups_per_s_db"] = round(first["per_s"])
        if "index" in parts:
            index = api.load(
                "lookups from the index",
                api.closed("/v1/best", bodies, seconds, CONNECTIONS),
            )
            figures["lookups_per_s"] = round(index["per_s"])
        if "steady" in parts:
            steady = api.load("lookups at 500/s", api.open(bodies, seconds))
            figures["lookup_p99_ms_500"] = round(steady["p99_ms"], 2)
        if "streams" in parts:
            with streaming(api, seconds + 10.0) as told:
                beside = api.load("lookups at 500/s, 500 streams open and told", api.open(bodies, seconds))
                delays = told()
            api.rows.append({"kind": "streams", **delays})
            figures["lookup_p99_ms_500_beside_streams"] = round(beside["p99_ms"], 2)
            figures["streams"] = delays["open"]
            figures["stream_delay_ms"] = round(delays["slowest_ms"])
        if "submits" in parts:
            submits = api.load(
                "submissions",
                api.closed("/v1/jobs", _submissions(), seconds, SUBMITTERS),
            )
            figures["submits_per_s"] = round(submits["per_s"], 1)
        if "pages" in parts:
            figures["page_ms"] = round(_pages(api), 1)
        if "memory" in parts and not quick:
            figures["rss_growth_mb"] = round(_growth(api, bodies), 1)
        counts = {"trials": api.seeded.trials, "releases": api.seeded.releases, "events": api.seeded.events}
        return figures, api.rows, {"database": {"kind": "Postgres", **counts}, "api_processes": 1}


@contextmanager
def served(folder: Path, count: int) -> Iterator[Served]:
    """The API over a database with so many problems."""
    with ExitStack() as stack:
        # As an operator would set it for a database of this size.
        settings = {"synchronous_commit": "on", "shared_buffers": "512MB", "max_connections": 120}
        postgres = stack.enter_context(Postgres.start(**settings))
        valkey = Valkey(folder)
        valkey.start()
        stack.callback(valkey.kill)
        url = postgres.create_database()
        migrate.upgrade(url)
        database = Database(url, name="rooftile-bench")
        stack.callback(database.close)
        say(f"writing {count} problems with their trials, releases and events")
        seeded = seed(database, count)
        token, port, log = secrets.token_hex(16), free_port(), folder / "api.log"
        variables = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
        variables |= {
            "ROOFTILE_HOME": str(folder / "api"),
            "ROOFTILE_DATABASE_URL": url,
            "ROOFTILE_BROKER_URL": valkey.url,
            "ROOFTILE_TOKEN": token,
        }
        command = [sys.executable, "-m", "service.api", "--port", str(port)]
        with log.open("wb") as file:
            process = spawn(command, env=variables, stdout=file, stderr=file)
        stack.callback(_end, process)
        os.sched_setaffinity(process.pid, {API_CPU})
        api = Served(database, seeded, port, token, process, log)
        _wait(api)
        yield api


def _wait(api: Served) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if urllib3.request("GET", f"http://127.0.0.1:{api.port}/readyz", retries=False).status == 200:
                return
        except urllib3.exceptions.HTTPError:
            pass
        if api.process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"the API is not ready: {api.log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _generator(order: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.loading.generator"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order))
    process.stdin.close()
    try:
        yield process
    finally:
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.kill()
        process.wait()


# ---------------------------------------------------------------- loads


def _lookups(seeded: Seeded) -> list[str]:
    return [json.dumps({"problem": one.to_json(), "device": DEVICE}) for one in seeded.problems]


def _submissions() -> list[str]:
    """Different ones: equal requests would be joined."""
    problem = {"op": "gemm", "n": 4096, "k": 4096, "dtype": "f32"}
    body = {"device": DEVICE, "budget": {"trials": 60}}
    return [json.dumps({"problem": {**problem, "m": 1 + number}, **body}) for number in range(20_000)]


@contextmanager
def streaming(api: Served, seconds: float) -> Iterator[Any]:
    """500 streams of 20 open jobs. Yields a function: how late events were, at the slowest too."""
    problem = {"op": "gemm", "n": 512, "k": 512, "dtype": "f32"}
    ids = []
    for m in range(20):
        job, _ = submit(api.database, {"problem": {**problem, "m": 1 + m}, "device": DEVICE, "force": True})
        ids.append(job.id)
    with api.database.read() as s:
        after = events.latest_id(s)
    paths = [f"/v1/jobs/{ids[n % len(ids)]}/events?after={after}" for n in range(STREAMS)]
    with _generator(api.order("streams", paths=paths, seconds=seconds)) as process:
        assert process.stdout is not None
        opened = json.loads(process.stdout.readline() or "{}")
        if not opened:
            raise BenchError("the streams were not opened")
        sent: dict[int, float] = {}
        stop = threading.Event()

        def tell() -> None:
            while not stop.wait(1.0):
                with api.database.begin() as s:
                    for job_id in ids:
                        events.note(s, job_id, "bench")
                now = time.time()
                with api.database.read() as s:
                    newest = events.latest_id(s)
                sent.update(dict.fromkeys(range(newest - len(ids) + 1, newest + 1), now))

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        found: dict[str, Any] = {}

        def told() -> dict[str, Any]:
            stop.set()
            thread.join()
            assert process.stdout is not None
            result = json.loads(process.stdout.readline())
            found.update(_delays(result["seen"], sent, opened["open"]))
            return found

        yield told


def _delays(
    seen: Sequence[Sequence[tuple[int, float]]], sent: Mapping[int, float], count: int
) -> dict[str, Any]:
    late = [at - sent[number] for one in seen for number, at in one if number in sent]
    if not late:
        raise BenchError("no stream told an event")
    return {
        "open": count,
        "events": sum(len(one) for one in seen),
        "median_ms": 1e3 * statistics.median(late),
        "slowest_ms": 1e3 * max(late),
    }


def _pages(api: Served) -> float:
    """The slowest of the dashboard's pages and of the list routes: median milliseconds to the first byte."""
    with api.database.read() as s:
        first = trials.get(s, 1)
    assert first is not None
    job = first.job_id  # with its trials; the newest are the load's, which nobody works on
    problem = api.seeded.problems[0]
    paths = [
        "/", "/jobs", f"/jobs/{job}", "/jobs?state=done", "/trials/1", f"/?device={DEVICE}",
        "/v1/jobs", f"/v1/jobs/{job}", f"/v1/jobs/{job}/trials", "/v1/trials/1",
        "/v1/releases", f"/v1/releases?device={DEVICE}",
        f"/v1/layers/{problem.layer().key}/table?device={DEVICE}", f"/v1/problems/{problem.key}",
        "/v1/devices", "/v1/archs", "/v1/demand", "/v1/spaces?op=gemm&arch=x86-64-v3", "/v1/audit",
        "/readyz", "/metrics",
    ]  # fmt: skip
    result = api.load("pages", api.order("pages", paths=paths, times=PAGE_TIMES))
    worst = 0.0
    for path, one in zip(paths, result["pages"], strict=True):
        shown = path.replace(problem.key, "KEY").replace(problem.layer().key, "KEY")
        api.rows.append({"kind": "page", "path": shown, **one})
        say(f"  {one['median_ms']:7.1f} ms  {one['status']}  {shown}")
        if one["status"] != 200:
            raise BenchError(f"{shown} is answered with {one['status']}")
        worst = max(worst, float(one["median_ms"]))
    return worst


def _growth(api: Served, bodies: Sequence[str]) -> float:
    """MiB that the process grew by over ten minutes of lookups: the last minute's median over the second's.
    The first minute is left out: pools and caches fill."""
    samples: list[tuple[float, float]] = []
    started = time.monotonic()
    with _generator(api.open(bodies, GROWTH_S)) as process:
        while process.poll() is None:
            samples.append((time.monotonic() - started, api.rss_mb()))
            time.sleep(5.0)
    second = statistics.median(rss for at, rss in samples if 60 <= at < 120)
    last = statistics.median(rss for at, rss in samples if at >= GROWTH_S - 60)
    shown = [[round(at), round(rss, 1)] for at, rss in samples[::6]]
    api.rows.append({"kind": "memory", "rss_mb": shown, "second_minute_mb": second, "last_minute_mb": last})
    return last - second


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
