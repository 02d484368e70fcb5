"""Which world do tests of jobs live in: one toy family, and a connected device where asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hands import Hands, connect
from support.toy_family import ToyFamily, only_family

from service.search.proposer import Proposer
from service.store.database import Database


@pytest.fixture(autouse=True)
def toy_family() -> Iterator[ToyFamily]:
    with only_family() as family:
        yield family


@pytest.fixture
def hands(sqlite_url: str) -> Iterator[Hands]:
    """Workers for the one connected device, on SQLite: enough where only what is decided matters."""
    database = Database(sqlite_url, name="rooftile-test")
    connect(database)
    yield Hands(database)
    database.close()


@pytest.fixture
def both(database: Database) -> Hands:
    """As `hands`, on each database in turn."""
    connect(database)
    return Hands(database)


@pytest.fixture
def proposer() -> Proposer:
    return Proposer(scored=100)
