"""Can the bytes below a hash ever become others: by REST, in the database, or on a worker's disk?"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient
from support.api import Seed

from service.store import artifacts
from service.store.database import Database
from service.store.enums import ArtifactKind
from service.store.errors import ArtifactMismatch
from worker.compile.cache import ArtifactCache
from worker.measuring import ArtifactLostError, Artifacts

DATA, OTHER = b"\x7fELF of a kernel", b"\x7fELF of an attacker"
SHA = sha256(DATA).hexdigest()


def _put(database: Database, data: bytes | None = DATA) -> None:
    with database.begin() as s:
        artifacts.put(s, SHA, data, ArtifactKind.KERNEL, {"source": "x86/gemm.c"}, "x86-64-v3")


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_no_method_of_the_api_writes_an_artifact(client: TestClient, seed: Seed, method: str) -> None:
    _put(seed.database)
    assert client.request(method, f"/v1/artifacts/{SHA}", content=OTHER).status_code == 405
    assert client.request(method, "/v1/artifacts", content=OTHER).status_code in (404, 405)
    answer = client.get(f"/v1/artifacts/{SHA}")
    assert (answer.status_code, answer.content) == (200, DATA)
    assert answer.headers["ETag"] == f'"{SHA}"'


def test_the_store_takes_no_other_bytes_for_a_hash(database: Database) -> None:
    _put(database)
    with pytest.raises(ArtifactMismatch), database.begin() as s:
        artifacts.put(s, SHA, OTHER, ArtifactKind.KERNEL, {"source": "evil.c"})
    with database.begin() as s:  # the right bytes with another recipe change nothing either
        artifacts.put(s, SHA, DATA, ArtifactKind.POOL, {"source": "evil.c"}, "x86-64-v4")
        record = artifacts.get(s, SHA)
        assert record is not None
        assert (record.kind, record.arch, record.recipe) == (
            ArtifactKind.KERNEL,
            "x86-64-v3",
            {"source": "x86/gemm.c"},
        )
        assert artifacts.get_bytes(s, SHA) == DATA


def test_a_worker_runs_no_bytes_of_another_hash(database: Database, tmp_path: Path) -> None:
    """Whoever writes into the database or into the cache's folder gets nothing run under a name that was
    verified: it is told, or fetched again."""
    _put(database)
    here = Artifacts(database, tmp_path)
    path = here.path(SHA)
    assert path.read_bytes() == DATA
    path.chmod(0o600)
    path.write_bytes(OTHER)
    assert here.path(SHA).read_bytes() == DATA, "from the database again"
    ArtifactCache(tmp_path).blob_path(SHA).unlink()
    with database.begin() as s:
        s.execute(text("UPDATE artifacts SET data = :data"), {"data": OTHER})
    with pytest.raises(ArtifactLostError, match="do not have that hash"):
        here.path(SHA)
    assert not ArtifactCache(tmp_path).blob_path(SHA).exists()
