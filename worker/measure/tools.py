"""Where do the helper artifacts of a measure worker come from?"""

from __future__ import annotations

from pathlib import Path

import structlog

from worker.compile import compile_pool, compile_tool
from worker.compile.cache import ArtifactCache
from worker.errors import CompileFailure, CompilerMissingError
from worker.measure import calibration
from worker.measure.session import Tools

_log = structlog.get_logger("rooftile.measure")

GUARD_SOURCE = "x86/faultguard.c"
GUARD_ENTRIES = ("rt_guard_install",)


def build_tools(arch: str, home: Path) -> Tools:
    """Build fault guard, calibration and pool, or take them from the cache.

    Without a compiler a measure worker still works: faults then have no address, and there is no roof.
    """
    cache = ArtifactCache(home)
    try:
        guard = compile_tool(GUARD_SOURCE, arch, GUARD_ENTRIES, home=home)
        calibrate = compile_tool(calibration.SOURCE, arch, calibration.ENTRIES, home=home)
        pool = compile_pool(arch, home=home)
    except (CompilerMissingError, CompileFailure) as error:
        _log.warning("measuring without fault addresses and roof", error=str(error))
        return Tools()
    return Tools(
        guard=cache.put_bytes(guard.sha256, guard.data),
        calibrate=cache.put_bytes(calibrate.sha256, calibrate.data),
        pool=cache.put_bytes(pool.sha256, pool.data),
    )
