"""What must be in place before the first child starts: a port, tables, an admin token, no dead workers?"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from pathlib import Path

from service.errors import HomeError, PortTakenError
from service.host import host_name
from service.paths import Home, home_error
from service.store import audit, emulation_claims, leases, logins, migrate, races, tokens, trials, workers
from service.store.database import Database
from service.store.enums import AuditAction, Scope
from service.store.records import WorkerRecord


def free_port(host: str, port: int) -> int:
    """Check that `host`:`port` can be listened on; port 0 picks one. Raises PortTakenError.

    The API binds it again moments later; if another program is quicker, the API's own error is shown.
    """
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        raise PortTakenError(f"--host {host} is not an address of this machine.") from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1)
        except OSError as error:
            raise PortTakenError(_port_sentence(host, port, error)) from None
        return int(listener.getsockname()[1])


def _port_sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken by another program; choose another with --port."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be used by this user; choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine."
    return f"Cannot listen on {host}:{port}: {error.strerror}."


def admin_token(home: Home, given: str | None) -> str:
    """The admin token: ROOFTILE_TOKEN where set, else the one in HOME/token, made on first use (0600)."""
    if given is not None:
        return given
    try:
        text = home.token.read_text().strip()
        if text:
            if home.token.stat().st_mode & 0o077:
                home.token.chmod(0o600)
            return text
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise HomeError(f"The token file {home.token} cannot be read: {error}.") from None
    token = secrets.token_urlsafe(32)
    _write_private(home, home.token, token + "\n")
    return token


def _write_private(home: Home, path: Path, text: str) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise home_error(home.root, error) from None


def admin_name(home: Home) -> str:
    """The admin token's name in the database, one a home: homes that share a database keep theirs apart."""
    return f"{tokens.OF_A_HOME}{host_name()}:{home.root}"[:100]


def prepare_database(home: Home, database_url: str, token: str) -> None:
    """Tables of this version, the admin token known, and nothing held by workers that died."""
    migrate.upgrade(database_url)
    database = Database(database_url, name="rooftile supervisor")
    try:
        with database.begin() as s:
            tokens.ensure(s, admin_name(home), {Scope.ADMIN}, token)
        forget_dead_workers(database)
    finally:
        database.close()


def forget_dead_workers(database: Database, pid: int | None = None) -> list[str]:
    """Give back at once what workers of this host held when they died; returns their ids.

    Without `pid` all that are dead, with it only that one (whose pid may be in use again by now). Workers
    of other hosts are left to the reaper, which waits for their leases to run out.
    """
    host = host_name()
    with database.read() as s:
        here = [row for row in workers.listing(s) if row.host == host]
    dead = [row for row in here if (row.pid == pid if pid is not None else not _lives(row))]
    for row in dead:
        with database.begin() as s:
            trials.expire(s, owner=row.id)
            races.expire(s, owner=row.id)
            emulation_claims.expire(s, owner=row.id)
            leases.release_all(s, row.id)
            workers.remove(s, row.id)
    return [row.id for row in dead]


def _lives(row: WorkerRecord) -> bool:
    """Whether a process of ours runs under this pid; another program may have got the number since."""
    try:
        command = Path(f"/proc/{row.pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(word in command for word in (b"worker", b"service", b"rooftile", b"pytest"))


def login_link(database_url: str, url: str) -> str:
    """A link that logs a browser in, once, within ten minutes."""
    database = Database(database_url, name="rooftile login")
    try:
        with database.begin() as s:
            code = logins.create_code(s, {Scope.ADMIN})
            audit.write(s, audit.command(), AuditAction.LINK_MADE, "login")
    finally:
        database.close()
    return f"{url}/login?code={code}"
