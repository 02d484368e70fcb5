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
def hands(database: Database) -> Hands:
    """Workers for the one connected device."""
    connect(database)
    return Hands(database)


@pytest.fixture
def proposer() -> Proposer:
    return Proposer(scored=100)
