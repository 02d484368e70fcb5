"""Do the migrations give the tables of the models, both ways, and only once at a time?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from support.store import (
    GPU_ARCH,
    add_device,
    compile_all,
    compiled,
    emulate_all,
    emulated,
    gpu_job,
    measure_all,
    running_job,
)

from service.store import migrate, releases, trials
from service.store.database import Database
from service.store.engine import make_engine, parse
from service.store.enums import ReleaseState, Winner
from service.store.errors import SchemaMismatch
from service.store.models import Base
from service.store.records import NewRelease

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


def _tables(url: str) -> set[str]:
    database = Database(url)
    with database.read() as s:
        names = set(inspect(s.connection()).get_table_names())
    database.close()
    return names - {"alembic_version"}


def test_up_down_and_up_again(empty_url: str) -> None:
    assert migrate.current(empty_url) is None
    assert migrate.upgrade(empty_url) == migrate.head()
    assert _tables(empty_url) == set(Base.metadata.tables)
    assert migrate.upgrade(empty_url) == migrate.head()
    migrate.check(empty_url)
    assert migrate.downgrade(empty_url) is None
    assert _tables(empty_url) == set()
    assert migrate.upgrade(empty_url) == migrate.head()
    Database(empty_url).ping()


def test_there_and_back_with_data_in_it(empty_url: str) -> None:
    """What an earlier version wrote is read by this one; what it does not know is in no row it reads."""
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.begin() as s:
        add_device(s)
        _, timed = running_job(s, 2)
        compile_all(s)
        measure_all(s, [10.0, 20.0])
        release = releases.create(
            s, NewRelease(timed[0].job_problem_id, {}, "k", Winner.TRIAL, timed[0].id, None, 10.0, None)
        )
        releases.publish(s, release.id)
        wrong = gpu_job(s, 1)
        compile_all(s, structure={"of": "one"}, ptx=b"ptx")
        emulate_all(s, emulated(False))
        waiting = gpu_job(s, 2, policy="all")
        for claim in trials.claim_compile(s, "compiler", 10, 60, [GPU_ARCH]):
            data = f"{claim.trial_id}".encode()
            # the first job's schedules are in quarantine under its toolchain
            built = compiled(data, structure={"of": "all"}, ptx=b"ptx", toolchain={"compiler": "nvrtc"})
            assert trials.finish_compile(s, claim.claim_id, built)
        assert emulate_all(s, count=1) == [waiting[1].id]
    database.close()
    assert migrate.downgrade(empty_url, "0001") == "0001"
    with _rows(empty_url) as read:
        assert "emulations" not in _tables(empty_url)
        assert dict(read("SELECT id, state FROM trials")) == {
            timed[0].id: "measured",
            timed[1].id: "measured",
            **{one.id: "failed" for one in wrong},
            **{one.id: "ranked" for one in waiting},
        }
        ended = read(f"SELECT reason, stage FROM trials WHERE id = {wrong[0].id}")
        assert ended == [("wrong_result", "done")]
        assert {row[0] for row in read("SELECT DISTINCT stage FROM trials")} == {"done"}
        assert read("SELECT reason FROM quarantines") == [("wrong_result",)]
        assert read("SELECT DISTINCT kind FROM verdicts") == [("device",)]
        assert read("SELECT count(*) FROM events WHERE kind = 'emulation'") == [(0,)]
    assert migrate.upgrade(empty_url) == migrate.head()
    database = Database(empty_url)
    with database.read() as s:
        kept = releases.get(s, release.id)
        found = [trials.detail(s, one.id) for one in (*timed, *wrong, *waiting)]
    database.close()
    assert kept is not None
    assert (kept.state, kept.unproven) == (ReleaseState.PUBLISHED, False)
    assert all(one is not None and one.emulation is None for one in found)


@contextmanager
def _rows(url: str) -> Iterator[Callable[[str], list[tuple[object, ...]]]]:
    """Rows by plain SQL: a database of another version is not opened by ours."""
    engine = make_engine(parse(url), name="rooftile-test", pooled=False)
    with engine.connect() as connection:
        yield lambda query: [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()


def test_models_are_what_the_migrations_make(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.read() as s:
        context = MigrationContext.configure(s.connection(), opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        # autogenerate does not look at the conditions of partial indexes
        partial = {
            name
            for table in Base.metadata.tables.values()
            for index in table.indexes
            if index.dialect_options["postgresql"]["where"] is not None
            for name in [str(index.name)]
        }
        if database.dialect == "sqlite":
            found = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
        else:
            found = "SELECT indexname FROM pg_indexes WHERE indexdef LIKE '% WHERE %'"
        assert set(s.execute(text(found)).scalars()) == partial
    database.close()


KILLED = """
    import sys, time
    from alembic import op
    from service.store import migrate

    made = []
    create = op.create_table

    def slow(*args, **kwargs):
        table = create(*args, **kwargs)
        made.append(table)
        if len(made) == 5:
            print("half", flush=True)
            time.sleep(60)
        return table

    op.create_table = slow
    migrate.upgrade(sys.argv[1])
"""


def test_a_killed_migration_leaves_nothing_and_no_lock(empty_url: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), empty_url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert migrate.current(empty_url) is None
    assert _tables(empty_url) == set()
    assert migrate.upgrade(empty_url) == migrate.head()


def test_a_newer_database_is_refused_in_words(database_url: str) -> None:
    database = Database(database_url)
    with database.begin() as s:
        s.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaMismatch, match="newer version"):
        database.ping()
    with pytest.raises(SchemaMismatch, match="newer version"):
        migrate.check(database_url)
    with pytest.raises(SchemaMismatch, match="cannot be migrated"):
        migrate.upgrade(database_url)
    database.close()
