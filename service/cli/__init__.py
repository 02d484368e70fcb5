"""Which words does the server distribution add to the command `rooftile`?

Each is an entry point of the group `rooftile.commands`: main(argv) -> exit code (0 done, 2 wrong use,
1 anything else). Nothing is imported before its command is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence


def serve(argv: Sequence[str]) -> int:
    """Run the service on this machine: API, search and workers."""
    from service.cli.serve_command import main

    return main(argv)


def tune(argv: Sequence[str]) -> int:
    """Tune a problem in the foreground and show the result."""
    from service.cli.tune_command import main

    return main(argv)


def worker(argv: Sequence[str]) -> int:
    """Run one worker (search, compile or measure) in this process."""
    from service.cli.worker_command import main

    return main(argv)


def migrate(argv: Sequence[str]) -> int:
    """Bring the database's tables to this version."""
    from service.cli.migrate_command import main

    return main(argv)


def token(argv: Sequence[str]) -> int:
    """Create, list and revoke tokens."""
    from service.cli.token_command import main

    return main(argv)


def device(argv: Sequence[str]) -> int:
    """List devices, take one out of service and put it back."""
    from service.cli.device_command import main

    return main(argv)


def compact(argv: Sequence[str]) -> int:
    """Let go of old samples, logs and events."""
    from service.cli.compact_command import main

    return main(argv)


def backup(argv: Sequence[str]) -> int:
    """Put the database with its artifacts into one file."""
    from service.cli.backup_command import main_backup

    return main_backup(argv)


def restore(argv: Sequence[str]) -> int:
    """Bring a backup into an empty database."""
    from service.cli.backup_command import main_restore

    return main_restore(argv)


def doctor(argv: Sequence[str]) -> int:
    """Say what is here, what is missing and how to get it."""
    from service.cli.doctor_command import main

    return main(argv)
