"""What comes back over a real socket, also for bytes that no HTTP library would send?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import urllib3
from fastapi import FastAPI
from support.served import served


@pytest.fixture
def port(app: FastAPI) -> Iterator[int]:
    with served(app) as number:
        yield number


def test_answers_on_a_kept_connection_wait_for_no_acknowledgement(port: int) -> None:
    """With Nagle's algorithm on, each would take the 40 ms of a delayed acknowledgement."""
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=1)
    took = []
    for _ in range(30):
        started = time.monotonic()
        assert pool.request("GET", "/healthz").status == 200
        took.append(time.monotonic() - started)
    assert pool.num_connections == 1
    assert min(took) < 0.03
