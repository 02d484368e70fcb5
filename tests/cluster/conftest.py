"""Which broker do the tests of the cluster shape use? A real Valkey server, one process a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.servers.valkey import Valkey


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Valkey]:
    made = Valkey(tmp_path)
    made.start()
    yield made
    made.kill()
