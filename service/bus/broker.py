"""Is the broker one that keeps what it is given?"""

from __future__ import annotations

from typing import Any

import structlog

_log = structlog.get_logger("rooftile.broker")


def broker_info(broker_url: str) -> dict[str, Any]:
    """What the server says about itself. Raises redis.RedisError or OSError within 2 seconds."""
    import redis

    client = redis.Redis.from_url(
        broker_url.replace("redis+socket", "unix"), socket_connect_timeout=2, socket_timeout=2
    )
    try:
        return dict(client.info())
    finally:
        client.close()


def eviction_warning(info: dict[str, Any]) -> str | None:
    """A server that evicts loses messages one by one; each costs its worker a sweep (CE-28)."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return None
    return f"The broker's maxmemory-policy is {policy}: set noeviction, or messages may vanish."


def warn_of_eviction(broker_url: str) -> None:
    """Log the warning, once, at the start of a worker. A broker that is away is nobody's surprise."""
    import redis

    try:
        warning = eviction_warning(broker_info(broker_url))
    except (redis.RedisError, OSError):
        return
    if warning is not None:
        _log.error(warning)


def broker_fault(broker_url: str) -> str | None:
    """Why the broker cannot be relied on, in a sentence without its address; None: it answers, and keeps what
    it is given."""
    import redis

    try:
        return eviction_warning(broker_info(broker_url))
    except redis.AuthenticationError:
        return "The broker refuses the password of ROOFTILE_BROKER_URL."
    except (redis.RedisError, OSError) as error:
        return f"The broker does not answer ({type(error).__name__}); workers sweep the database meanwhile."
