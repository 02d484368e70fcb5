"""Who holds a lease or has a transaction open at this moment? Only faults that hit such a process count."""

from __future__ import annotations

from sqlalchemy import text

from bench.chaotic.cluster import Cluster
from bench.chaotic.process import Process
from service.store.errors import StoreError

# Without those of devices, which their workers hold as long as they live: what counts is work under way.
# Owners begin with kind and host: measure@alpha/..., search-search1-...
_LEASED = """
    SELECT lease_owner FROM trials WHERE lease_owner IS NOT NULL AND lease_expires_at > now()
    UNION SELECT lease_owner FROM races WHERE lease_owner IS NOT NULL AND lease_expires_at > now()
    UNION SELECT lease_owner FROM emulations WHERE lease_owner IS NOT NULL AND lease_expires_at > now()
    UNION SELECT owner FROM leases WHERE expires_at > now() AND name NOT LIKE 'device:%'
"""
_OPEN = """
    SELECT application_name FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
"""
_API = "rooftile-api"


def holders(cluster: Cluster) -> list[Process]:
    """Processes that run and hold something; of the API, one with a transaction open. Empty where the
    database does not answer."""
    try:
        with cluster.database.read() as s:
            owners = [row[0] for row in s.execute(text(_LEASED))]
            working = {row[0] for row in s.execute(text(_OPEN))}
    except StoreError:
        return []
    hosts = {_host(owner) for owner in owners}
    found = []
    for process in cluster.processes:
        holds = _API in working if process.kind == "api" else process.host in hosts
        if holds and process.pid is not None:
            found.append(process)
    return found


def _host(owner: str) -> str:
    if "@" in owner:
        return owner.partition("@")[2].partition("/")[0]
    return owner.split("-")[1] if owner.count("-") >= 2 else ""
