"""Which family do tests of the search draw from?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.toy_family import ToyFamily, only_family


@pytest.fixture(autouse=True)
def toy_family() -> Iterator[ToyFamily]:
    with only_family() as family:
        yield family
