"""Which databases do all tests share, and which tests must run alone?

`sqlite_url` and `postgres_url` are migrated databases of the test's own; `database` is a Database on
each of the two in turn. Postgres starts once a session, at first use, and each test gets a copy of a
template that was migrated once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url

from bench.servers.postgres import Postgres, PostgresMissingError
from service.store import migrate
from service.store.database import Database

# How long a draw takes says nothing of our code on a machine that others use too.
settings.register_profile("shared machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared machine")

# These measure on this machine's CPU, whose lock they take, or watch how long something takes: they have the
# machine to themselves. All others may run in several processes, file by file, since a file's fixtures are
# costly.
ALONE = (
    *(f"bench/test_{name}.py" for name in ("cpu_gemm", "gpu_check")),
    "cluster/test_cluster.py",
    *(
        f"ops/test_{name}.py"
        for name in ("busy_device", "children", "gate", "kill", "round_trip", "stop", "tune")
    ),
    *(f"worker/test_{name}.py" for name in ("cuda_loop", "loops", "main", "planted", "race", "timing")),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` chooses: mark what must be alone; and group by file for `-n`."""
    here = Path(__file__).parent
    for item in items:
        place = str(item.path.relative_to(here))
        if place.startswith(ALONE):
            item.add_marker("alone")
        item.add_marker(pytest.mark.xdist_group(place))


@pytest.fixture(autouse=True)
def _logs_of_this_test_only() -> Iterator[None]:
    """To stderr, as in every process of ours: stdout is for results. A command run inside a test points
    structlog at captured stderr, which is closed after that test."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.__stderr__))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    try:
        server = Postgres.start()
    except PostgresMissingError as missing:
        pytest.skip(f"POSTGRES TESTS ARE NOT RUN: {missing}")
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Postgres) -> str:
    url = postgres_server.create_database()
    migrate.upgrade(url)
    name = make_url(url).database
    assert name is not None
    return name


@pytest.fixture
def postgres_url(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    url = postgres_server.create_database(postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def empty_postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """A database without any tables."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate.upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    file = tmp_path / "rooftile.db"
    shutil.copy(sqlite_template, file)
    return f"sqlite:///{file}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the two in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Each of the two in turn."""
    opened = Database(database_url, name="rooftile-test")
    yield opened
    opened.close()
