"""Does the chaos run notice a wrong answer, and an end that nobody may have? Whom does it strike?"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.chaotic.caller import Caller
from bench.chaotic.faults import WORKERS, draw_kind
from bench.chaotic.onlooker import Onlooker
from bench.chaotic.process import OURS, explain

DATA = b"the bytes of a kernel"
SHA256 = hashlib.sha256(DATA).hexdigest()
PROBLEM, DEVICE = {"op": "gemm"}, "cpu-x"


class Service(BaseHTTPRequestHandler):
    """Answers as it is told to, whatever is asked."""

    releases: list[int | None]
    data: bytes
    parts: list[tuple[str, bytes]]
    """Last-Event-ID that is expected, and what the stream tells before it is cut."""

    def do_POST(self) -> None:
        release = self.releases.pop(0)
        tree = {"problem_key": "k", "release_id": release, "artifact": None if release is None else SHA256}
        self._answer(json.dumps(tree).encode())

    def do_GET(self) -> None:
        if not self.path.endswith("/events"):
            self._answer(self.data)
            return
        last, told = self.parts.pop(0)
        assert self.headers["Last-Event-ID"] == last
        self._answer(told)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def onlooker() -> Iterator[Onlooker]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Onlooker(f"http://127.0.0.1:{server.server_port}", "token", lambda: [], lambda: [])
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("releases", "data", "says"),
    [
        ([None, 3, 3, 4], DATA, None),
        ([3, None], DATA, "release 3 was served, and now it is None"),
        ([4, 3], DATA, "release 4 was served, and now it is 3"),
        ([3], b"others", "its bytes have another hash"),
    ],
)
def test_a_wrong_answer_is_noticed(
    onlooker: Onlooker, releases: list[int | None], data: bytes, says: str | None
) -> None:
    Service.releases, Service.data = list(releases), data
    for _ in releases:
        onlooker.look_up(Caller(onlooker.url, onlooker.token), PROBLEM, DEVICE)
    assert onlooker.answers["lookup"] == len(releases)
    assert [says in one for one in onlooker.failures if says] == ([] if says is None else [True])
    assert says is not None or onlooker.failures == []


def written(*ids: int) -> bytes:
    return b"".join(b": rooftile\n\nevent: trial\nid: %d\ndata: {}\n\n" % one for one in ids)


END = b"event: end\nid: 9\ndata: {}\n\n"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([("0", written(1, 2)), ("2", b""), ("2", written(5) + b"event: tri"), ("5", END)], None),
        ([("0", written(1, 2)), ("2", written(2, 5) + END)], "2 came after 2"),
        ([("0", written(1) + END)], "1 were told and 3 are written, without [2, 5]"),
        ([("0", written(1, 5, 2) + END)], "2 came after 5"),
    ],
)
def test_a_stream_must_tell_each_event_once_over_all_its_cuts(
    onlooker: Onlooker, parts: list[tuple[str, bytes]], says: str | None
) -> None:
    Service.parts = list(parts)
    onlooker.follow(7)
    onlooker.compare(lambda job_id: [1, 2, 5])
    assert bool(onlooker.failures) == (says is not None)
    assert says is None or any(says in one for one in onlooker.failures)
    (row,) = [one for one in onlooker.rows() if one["what"] == "resumed"]
    assert row["count"] == len(parts) - 1


@pytest.mark.parametrize(
    ("status", "said", "killed", "starved", "why"),
    [
        (-signal.SIGKILL, "", True, False, OURS),
        (-signal.SIGKILL, "", False, True, None),
        (1, "ready\nrooftile: The database does not answer.\n", False, False, "rooftile: The database"),
        (1, "Traceback\nValueError: x\n", False, False, None),
        (1, "Traceback\nMemoryError\n", False, True, "memory starved by us"),
        (70, "", False, False, "its watch over its own threads"),
        (-signal.SIGSEGV, "", False, True, "memory starved by us"),
        (-signal.SIGSEGV, "", True, False, None),
        (0, "", False, True, None),
    ],
)
def test_an_end_is_explained_or_wrong(
    status: int, said: str, killed: bool, starved: bool, why: str | None
) -> None:
    found = explain(status, said, killed=killed, starved=starved)
    assert (found is None) == (why is None)
    assert why is None or str(found).startswith(why)


def test_who_was_struck_least_is_drawn_most() -> None:
    rng = random.Random(1)
    struck = Counter({"measure": 30, "search": 10, "compile": 1})
    drawn = Counter(draw_kind(struck, rng, WORKERS) for _ in range(4000))
    assert drawn["emulate"] > drawn["compile"] > drawn["search"] > drawn["measure"] > 0
    even: Counter[str] = Counter()
    for _ in range(400):
        even[draw_kind(even, rng, WORKERS)] += 1
    assert max(even.values()) < 1.5 * min(even.values())
