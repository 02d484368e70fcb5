"""What do the client's tests share? A real pool and a real toy kernel, built by the machine's compiler,
plans for it, and an HTTP server that answers like the service: real sockets, real bytes, scripted content."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rooftile.launch.pool import Pool, get_pool
from rooftile.plan import LaunchPlan

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def build(source: Path, target: Path, *flags: str) -> Path:
    """A shared object of one C file, as the worker builds artifacts."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    command = [compiler] if compiler else ["python3", "-m", "ziglang", "cc"]
    command += [
        "-std=c11",
        "-O2",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-pthread",
        *flags,
    ]
    subprocess.run(
        [*command, f"-I{ROOT / 'kernels/x86/include'}", str(source), "-o", str(target)],
        check=True,
        timeout=60,
    )
    return target


@pytest.fixture(scope="session")
def pool_so(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pool artifact."""
    return build(
        ROOT / "kernels/x86/pool.c", tmp_path_factory.mktemp("pool") / "pool.so", "-Wextra", "-Wpedantic"
    )


@pytest.fixture(scope="session")
def toy_so(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy kernel."""
    return build(HERE / "toy_gemm.c", tmp_path_factory.mktemp("toy") / "toy.so")


@pytest.fixture(scope="session")
def pool(pool_so: Path) -> Pool:
    """A pool of two threads that tests share."""
    return get_pool(pool_so, 2)


@pytest.fixture
def own_pool(pool_so: Path) -> Iterator[Callable[[int], Pool]]:
    """Makes pools of a test's own, closed at its end."""
    made: list[Pool] = []

    def make(threads: int) -> Pool:
        made.append(Pool(pool_so, threads))
        return made[-1]

    yield make
    for one in made:
        one.close()


_SIZES = [
    "m", "n", "k", "batch", "ld_a", "ld_b", "ld_c", "ld_out", "ld_residual",
    "stride_a", "stride_b", "stride_c", "stride_out", "stride_residual",
]  # fmt: skip


@pytest.fixture
def toy_plan() -> Callable[..., LaunchPlan]:
    """toy_plan(b="kn", split=False, valid=None): the plan of toy_gemm.c as JSON would give it."""

    def make(
        b: str = "kn", split: bool = False, valid: dict[str, Any] | None = None, init: str = ""
    ) -> LaunchPlan:
        args: list[dict[str, Any]] = [
            {"name": name, "type": "ptr", "buffer": name}
            for name in ("a", "b", "c", "out", "bias", "residual", "workspace")
        ]
        args += [{"name": name, "type": "i64", "value": name} for name in _SIZES]
        args.append({"name": "b_is_nk", "type": "i32", "value": int(b == "nk")})
        args += [{"name": name, "type": "f32", "scalar": name} for name in ("alpha", "beta")]
        bytes_: Any = {"op": "*", "args": [4, "batch", "m", "n", "threads"]} if split else 0
        entries = ["split", "reduce"] if split else ["run"]
        steps: list[dict[str, Any]] = [
            {"op": "launch", "entry": entry, "threads": "threads", "args": args} for entry in entries
        ]
        if split and init != "zero":
            steps.insert(0, {"op": "fill", "target": "workspace", "offset": 0, "bytes": bytes_, "value": 0})
        return LaunchPlan.from_json({
            "schema": 1, "family": "toy", "arch": "x86-64-v3", "kind": "x86", "entries": entries,
            "sizes": _SIZES,
            "workspace": {"bytes": bytes_, "init": init or "none"}, "steps": steps, "deterministic": True,
            "valid_for": valid or {"sizes": {"k": {"min": 0}}, "align": {"a": 4, "b": 4, "out": 4}},
        })  # fmt: skip

    return make


# -- the service's stand-in -------------------------------------------------------------------------------

JSON = "application/json"
PROBLEM = "application/problem+json"


class Request:
    """What a client sent."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = tuple[int, Any] | tuple[int, Any, str] | tuple[int, Any, str, dict[str, str]]
Route = Answer | Callable[[Request], Answer]


class Peer:
    """routes["GET /v1/jobs/1"] = (status, body[, content type[, headers]]), or a function of the request. A
    path without an own route gets 404. Everything asked is kept in `seen`."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.seen: list[Request] = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.command, self.path, dict(self.headers), body)
                peer.seen.append(request)
                route = peer.routes.get(f"{self.command} {self.path}")
                if callable(route):
                    route = route(request)
                status, content, *rest = route or (404, {"title": "not found", "status": 404}, PROBLEM)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", rest[0] if rest else JSON)
                self.send_header("Content-Length", str(len(data)))
                for name, value in (rest[1] if len(rest) > 1 else {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_any  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A Peer of the test's own."""
    one = Peer()
    yield one
    one.close()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the home, the address or the token of who runs it."""
    for name in ("ROOFTILE_URL", "ROOFTILE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "rooftile-home"
    monkeypatch.setenv("ROOFTILE_HOME", str(home))
    return home
