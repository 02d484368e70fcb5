"""Would `docker compose up` start what this repository holds? Without Docker: parse and resolve."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from bench.servers.postgres import free_port
from bench.servers.valkey import _binary as valkey_server
from service import doctor_cluster as cluster
from service import periods
from service.api.files import LEFT_FOR_OTHERS
from service.api.streams import MOST_OPEN
from service.bus.broker import broker_fault, broker_info, eviction_warning
from service.host import host_name
from service.settings import Settings
from service.store import workers
from service.store.database import Database
from service.store.enums import WorkerKind, WorkerState

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


def test_the_cluster_is_all_there() -> None:
    assert set(SERVICES) == {
        "postgres", "valkey", "migrate", "api", "search", "compile", "emulate", "measure", "measure-gpu",
    }  # fmt: skip
    assert set(OURS) == {"migrate", "api", "search", "compile", "emulate", "measure", "measure-gpu"}
    major = re.fullmatch(r"postgres:(\d+).*", SERVICES["postgres"]["image"])
    assert major is not None
    assert int(major[1]) >= 15


@pytest.mark.parametrize("name", SERVICES)
def test_long_running_services_are_watched(name: str) -> None:
    service = SERVICES[name]
    if name == "migrate":
        assert service["restart"] == "no"
        return
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    # A probe that asks Celery restarts busy workers (CE-14).
    assert "celery" not in " ".join(service["healthcheck"]["test"])


@pytest.mark.parametrize("name", OURS)
def test_dependencies_and_volumes_exist(name: str) -> None:
    service = SERVICES[name]
    for other, rule in service["depends_on"].items():
        expected = "service_completed_successfully" if other == "migrate" else "service_healthy"
        assert rule == {"condition": expected}
        assert other == "migrate" or "healthcheck" in SERVICES[other]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or source.startswith("${ROOFTILE_HOST_LOCKS")
    environment = service["environment"]
    assert environment["ROOFTILE_DATABASE_URL"].startswith("postgresql://")
    assert environment["ROOFTILE_BROKER_URL"].endswith("@valkey:6379/0")
    assert environment["ROOFTILE_LOG_FORMAT"] == "json"
    assert get_settings_from(environment).log_format == "json"


def get_settings_from(environment: dict[str, str]) -> Settings:
    """As the service would read them, with the variables of .env put in."""
    filled = {name: re.sub(r"\$\{\w+:\?[^}]*\}", "x" * 48, value) for name, value in environment.items()}
    return Settings(**{name.removeprefix("ROOFTILE_").lower(): value for name, value in filled.items()})


def test_the_api_may_open_a_file_for_each_stream() -> None:
    limit = SERVICES["api"]["ulimits"]["nofile"]
    assert limit["soft"] == limit["hard"] >= MOST_OPEN + LEFT_FOR_OTHERS


def test_who_excludes_each_other_on_a_host_shares_its_locks() -> None:
    for name in ("search", "compile", "emulate", "measure", "measure-gpu"):
        assert any(volume.endswith(":/run/lock") for volume in SERVICES[name]["volumes"])


def test_the_broker_loses_nothing_to_eviction_and_wants_its_password(tmp_path: Path) -> None:
    """The command itself, with a Valkey of a wheel, in a folder of the test's."""
    port = free_port()
    script = SERVICES["valkey"]["command"][2].replace("$$", "$").replace("cd /data", f"cd {tmp_path}")
    wrapper = tmp_path / "valkey-server"
    wrapper.write_text(f'#!/bin/sh\nexec {valkey_server()} "$@" --port {port} --bind 127.0.0.1\n')
    wrapper.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    server = subprocess.Popen(
        ["sh", "-c", script],
        env={"PATH": path, "VALKEY_PASSWORD": "b" * 48},
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                info = broker_info(f"redis://:{'b' * 48}@127.0.0.1:{port}/0")
                break
            except (redis.RedisError, OSError):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert eviction_warning(info) is None
        assert info["maxmemory"] == 192 * 2**20
        assert "bbbb" not in Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
        assert broker_fault(f"redis://127.0.0.1:{port}/0") == (
            "The broker refuses the password of ROOFTILE_BROKER_URL."
        )
    finally:
        server.terminate()
        assert server.wait(10) == 0


@pytest.mark.parametrize("name", SERVICES)
def test_everybody_may_do_little(name: str) -> None:
    """Also who is not ours."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    assert service["mem_limit"]
    assert service["pids_limit"]
    # A throttled worker would measure its throttling: those two alone have all CPUs.
    assert ("cpus" not in service) == (name in ("measure", "measure-gpu"))
    if name not in OURS:
        assert service["user"].partition(":")[0] not in ("0", "root")


def test_postgres_can_write_where_it_must() -> None:
    service = SERVICES["postgres"]
    mounts = [volume.rpartition(":")[2] for volume in service["volumes"]]
    mounts += [one.partition(":")[0] for one in service["tmpfs"]]
    assert set(mounts) == {"/var/lib/postgresql/data", "/var/run/postgresql", "/tmp"}


@pytest.mark.parametrize("name", ["measure", "measure-gpu"])
def test_who_measures_is_looked_at_seldom(name: str) -> None:
    """Each look starts a Python on the CPU beside the measurement: about a second of it."""
    check = SERVICES[name]["healthcheck"]
    assert _seconds(check["interval"]) >= 120
    # and is known to be dead within minutes
    assert _seconds(check["interval"]) * check["retries"] <= 600


def _seconds(text: str) -> int:
    return int(text.removesuffix("s"))


@pytest.mark.parametrize("name", OURS)
def test_ours_write_to_memory_and_volumes(name: str) -> None:
    service = SERVICES[name]
    assert service["init"] is True
    # /tmp and the home are all that can be written; compiled things are run from there.
    mounts = [volume.rpartition(":")[2] for volume in service.get("volumes", [])]
    mounts += [one.partition(":")[0] for one in service["tmpfs"]]
    assert {"/tmp", "/var/lib/rooftile"} <= set(mounts)
    if name not in ("migrate", "api", "search"):
        assert any(one.startswith("/tmp:") and "exec" in one for one in service["tmpfs"])
    # longer than a worker needs to end in order (tests/ops/test_stop.py)
    assert int(service["stop_grace_period"].removesuffix("s")) >= 15
    assert "user" not in service  # the image's


def test_a_gpu_worker_has_one_gpu() -> None:
    service = SERVICES["measure-gpu"]
    assert service["profiles"] == ["gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    assert [name for name, one in SERVICES.items() if "profiles" in one] == ["measure-gpu"]


def test_all_pools_fit_into_the_connections_of_postgres() -> None:
    command = SERVICES["postgres"]["command"]
    most = int(command[command.index("-c") + 1].partition("=")[2])
    assert cluster.connections(most - 3, 0, len(OURS) - 2).state is cluster.State.OK


def test_no_secret_has_a_value_here() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in re.findall(r"\w*(?:PASSWORD|TOKEN|AUTH)\w*: (.*)", text):
        assert name.startswith("${")


def test_nothing_but_the_api_is_open_and_only_to_this_host() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"api": ["127.0.0.1:8417:8417"]}


def _commands() -> list[tuple[str, ...]]:
    commands = {tuple(SERVICES[name]["command"]) for name in OURS}
    commands |= {
        tuple(SERVICES[name]["healthcheck"]["test"][1:]) for name in OURS if name not in ("api", "migrate")
    }
    return sorted(commands)


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_each_command_is_a_real_entry_point(command: tuple[str, ...], tmp_path: Path) -> None:
    """With --help behind it: every word and option before it is known to the program."""
    program = {
        "python": [sys.executable],
        "rooftile": [str(Path(sys.executable).with_name("rooftile"))],
    }[command[0]]
    done = subprocess.run(
        [*program, *command[1:], "--help"],
        capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False,
        env={**os.environ, "ROOFTILE_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert not (tmp_path / "home").exists()  # asking for help does nothing


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_copy_what_is_there_and_what_the_build_needs(path: Path) -> None:
    lines = path.read_text().splitlines()
    copied: set[str] = set()
    for line in lines:
        words = line.split()
        if words[:1] == ["COPY"]:
            copied |= set(words[1:-1])
    assert all((ROOT / name).exists() for name in copied)
    assert {
        "client",
        "emulator",
        "service",
        "worker",
        "search_space",
        "kernels",
        "migrations",
        "pyproject.toml",
    } <= copied
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied <= allowed  # .dockerignore lets them into the build
    assert any(line.startswith("USER rooftile") for line in lines)
    version = re.search(r"^FROM python:3\.(\d+)", path.read_text(), re.M)
    assert version is not None
    assert int(version[1]) >= 11


def test_each_dockerfile_is_used() -> None:
    used = {SERVICES[name]["build"]["dockerfile"] for name in OURS}
    assert used == {f"docker/{path.name}" for path in (ROOT / "docker").glob("Dockerfile.*")}


def test_every_variable_is_one_that_we_read() -> None:
    known = {f"ROOFTILE_{name.upper()}" for name in Settings.model_fields} | {periods.VARIABLE}
    given = {name for service in OURS for name in SERVICES[service]["environment"]}
    given |= set(re.findall(r"ROOFTILE_\w+(?==)", "".join(path.read_text() for path in DOCKERFILES)))
    assert given <= known
    # and those that compose itself puts in place
    text = (ROOT / "docker-compose.yml").read_text()
    own = set(re.findall(r"\$\{(\w+)", text)) - known - {"POSTGRES_PASSWORD", "VALKEY_PASSWORD"}
    assert own == {"ROOFTILE_HOST_LOCKS", "ROOFTILE_COMPILE_MEMORY", "ROOFTILE_COMPILE_CPUS"}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_images_user_may_write_where_volumes_lie(path: Path) -> None:
    """A named volume takes the owner of the folder that the image has in its place."""
    text = path.read_text()
    user = re.search(r"^USER (\w+)$", text, re.M)
    uid = re.search(r"useradd --uid (\d+) [^&]*?(\w+) \\$", text, re.M)
    assert user is not None
    assert uid is not None
    assert user[1] == uid[2]
    mine = [one for one in OURS if SERVICES[one]["build"]["dockerfile"] == f"docker/{path.name}"]
    assert mine
    for name in mine:
        for volume in SERVICES[name].get("volumes", []):
            target = volume.rpartition(":")[2]
            if target != "/run/lock":  # the host's, of mode 1777
                assert f"install -d -o {user[1]} -g {user[1]} -m 0700 {target}" in text
        for mount in SERVICES[name]["tmpfs"]:
            place, _, options = mount.partition(":")
            assert place == "/tmp" or f"uid={uid[1]},gid={uid[1]}" in options
    assert "ENV ROOFTILE_HOME=/var/lib/rooftile " in text


def test_health_checks_need_no_home_and_no_rights(postgres_url: str, tmp_path: Path) -> None:
    """On a root that is read-only, by a user who owns nothing: with a worker, and without."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    tmp_path.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "ROOFTILE_HOME": str(home), "HOME": "/nonexistent",
                   "ROOFTILE_DATABASE_URL": postgres_url, "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    if nobody and not _may_read_us(nobody):
        nobody = {}
    checks = {name: SERVICES[name]["healthcheck"]["test"][1:] for name in OURS if name != "migrate"}
    for name in ("search", "compile"):
        command = [str(Path(sys.executable).with_name("rooftile")), *checks[name][1:]]
        run = {"capture_output": True, "text": True, "timeout": 60, "check": False, **nobody}
        dead = subprocess.run(command, env=environment, cwd="/", **run)
        assert dead.returncode == 1, dead.stderr
        assert f"No {name} worker of this host reported" in dead.stderr
        database = Database(postgres_url)
        with database.begin() as s:
            workers.heartbeat(s, name, WorkerKind(name), host_name(), 1, None, WorkerState.IDLE)
        database.close()
        alive = subprocess.run(command, env=environment, cwd="/", **run)
        assert alive.returncode == 0, alive.stderr
    assert list(home.iterdir()) == []


def _may_read_us(nobody: dict[str, Any]) -> bool:
    """Whether this checkout is open to other users."""
    command = [sys.executable, "-c", "import service"]
    try:
        return subprocess.run(command, cwd="/", capture_output=True, check=False, **nobody).returncode == 0
    except PermissionError:
        return False
