"""What is the load, seen by those who ask? A process on its own core (`python -m bench.loading.generator`).

Takes one order as JSON on stdin and gives one result on stdout. Latencies of the open loop are from the
moment at which a request was due, so a service that falls behind is charged for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import uvloop

from bench.loading.connection import BrokenAnswer, Connection, request

UNANSWERED_S = 30.0


async def open_loop(
    host: str, port: int, requests: Sequence[bytes], rate: float, seconds: float, connections: int
) -> dict[str, Any]:
    """Requests at a fixed rate, whatever comes back. One that is not answered with 200 counts as one that
    takes `UNANSWERED_S`."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(connections):
        free.put_nowait(await Connection.open(host, port))
    late: list[float] = []
    statuses: Counter[int] = Counter()
    tasks: set[asyncio.Task[None]] = set()

    async def one(due: float, wanted: bytes) -> None:
        connection = await free.get()
        try:
            answer = await connection.ask(wanted)
            statuses[answer.status] += 1
            late.append(time.perf_counter() - due if answer.status == 200 else UNANSWERED_S)
        except BrokenAnswer:
            statuses[0] += 1
            connection = await Connection.open(host, port)
        free.put_nowait(connection)

    started = time.perf_counter()
    count = int(rate * seconds)
    for number in range(count):
        due = started + number / rate
        while (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.ensure_future(one(due, requests[number % len(requests)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=UNANSWERED_S)
    late += [UNANSWERED_S] * (count - len(late))
    return {**_quantiles(late), "sent": count, "right": statuses[200], "statuses": dict(statuses)}


async def closed_loop(
    host: str, port: int, requests: Sequence[bytes], seconds: float, connections: int, *, once: bool
) -> dict[str, Any]:
    """As many as are answered, each connection one at a time. `once`: end when all were sent once."""
    late: list[float] = []
    statuses: Counter[int] = Counter()
    numbers = iter(range(len(requests) if once else 1 << 60))
    started = time.perf_counter()

    async def one() -> None:
        connection = await Connection.open(host, port)
        for number in numbers:
            began = time.perf_counter()
            if began - started > seconds:
                break
            try:
                answer = await connection.ask(requests[number % len(requests)])
                statuses[answer.status] += 1
                late.append(time.perf_counter() - began)
            except BrokenAnswer:
                statuses[0] += 1
                connection = await Connection.open(host, port)
        connection.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    took = time.perf_counter() - started
    good = statuses[200] + statuses[202]
    return {**_quantiles(late), "per_s": good / took, "seconds": took, "statuses": dict(statuses)}


class _Reader(asyncio.Protocol):
    """A stream that notes what comes and when, and reads it afterwards: five hundred are told at once,
    and on this core others measure."""

    def __init__(self, wanted: bytes, begun: Callable[[], None]) -> None:
        self._wanted = wanted
        self._begun = begun
        self._pieces: list[tuple[float, bytes]] = []
        self.transport: asyncio.Transport | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it
        self.transport.write(self._wanted)

    def data_received(self, data: bytes) -> None:
        self._pieces.append((time.time(), data))
        if len(self._pieces) == 1:
            self._begun()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True

    def seen(self) -> list[tuple[int, float]]:
        """Each event's id, and when the end of its line came."""
        found, rest = [], b""
        for at, piece in self._pieces:
            *lines, rest = (rest + piece).split(b"\n")
            found += [(int(line[4:]), at) for line in lines if line.startswith(b"id: ")]
        return found

    def check(self) -> None:
        head = self._pieces[0][1][:200] if self._pieces else b""
        assert head.startswith(b"HTTP/1.1 200"), head


async def streams(host: str, port: int, paths: Sequence[str], token: str, seconds: float) -> dict[str, Any]:
    """Open them all, tell on stdout when they are, and note when each event came."""
    opened = asyncio.Event()
    left = len(paths)

    def begun() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            opened.set()

    loop = asyncio.get_running_loop()
    readers = []
    for number, path in enumerate(paths):
        wanted = request("GET", path, token)
        _, reader = await loop.create_connection(partial(_Reader, wanted, begun), host, port)
        readers.append(reader)
        if number % 50 == 49:
            await asyncio.sleep(0.05)
    await asyncio.wait_for(opened.wait(), 60.0)
    for reader in readers:
        reader.check()
    print(json.dumps({"open": len(paths)}), flush=True)
    await asyncio.sleep(seconds)
    ended = sum(reader.ended for reader in readers)
    for reader in readers:
        if reader.transport is not None:
            reader.transport.close()
    return {"seen": [reader.seen() for reader in readers], "ended": ended}


async def first_bytes(host: str, port: int, requests: Sequence[bytes], times: int) -> dict[str, Any]:
    """Median milliseconds until an answer of each begins, one request at a time."""
    found = []
    for wanted in requests:
        took = []
        status = 0
        for _ in range(times):
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
            began = time.perf_counter()
            writer.write(wanted)
            line = await reader.readline()
            took.append(time.perf_counter() - began)
            status = int(line[9:12])
            writer.close()
        found.append({"median_ms": 1e3 * sorted(took)[len(took) // 2], "status": status})
    return {"pages": found}


def _quantiles(seconds: list[float]) -> dict[str, float | None]:
    values = sorted(seconds)
    if not values:
        return {"p50_ms": None, "p99_ms": None, "most_ms": None}
    at = [values[min(len(values) - 1, int(q * len(values)))] for q in (0.5, 0.99)]
    return {"p50_ms": 1e3 * at[0], "p99_ms": 1e3 * at[1], "most_ms": 1e3 * values[-1]}


async def run(order: Mapping[str, Any]) -> dict[str, Any]:
    """What the order asks for."""
    host, port, token = str(order["host"]), int(order["port"]), str(order["token"])
    bodies = [str(one).encode() for one in order.get("bodies", ())]
    path = str(order.get("path", ""))
    requests = [request("POST", path, token, one) for one in bodies]
    if order["kind"] == "open":
        return await open_loop(host, port, requests, order["rate"], order["seconds"], order["connections"])
    if order["kind"] == "closed":
        return await closed_loop(
            host, port, requests, order["seconds"], order["connections"], once=bool(order.get("once"))
        )
    if order["kind"] == "streams":
        return await streams(host, port, order["paths"], token, order["seconds"])
    pages = [request("GET", one, token) for one in order["paths"]]
    return await first_bytes(host, port, pages, order["times"])


def main() -> int:
    order = json.load(sys.stdin)
    if order.get("cpu") is not None:
        os.sched_setaffinity(0, {int(order["cpu"])})
    # The less it needs for itself, the less of what it measures is its own.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run(order))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
