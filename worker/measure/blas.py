"""Which environment lets numpy's BLAS run at its best, and which kernels did it choose?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# What handicaps a BLAS, or makes it choose other kernels than its own detection would.
HANDICAPS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "OPENBLAS_BLOCK_FACTOR",
    "OPENBLAS_MAIN_FREE",
    "OPENBLAS_VERBOSE",
    "OPENBLAS_THREAD_TIMEOUT",
    "OPENBLAS_DEFAULT_NUM_THREADS",
    "GOTOBLAS_MAIN_FREE",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "BLIS_ARCH_TYPE",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "NPY_DISABLE_CPU_FEATURES",
)
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def clean_environment(threads: int, source: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without handicaps, with `threads` for every BLAS that numpy may be built on."""
    environment = dict(os.environ if source is None else source)
    for name in HANDICAPS:
        environment.pop(name, None)
    return environment | {name: str(threads) for name in THREAD_VARIABLES}


def blas_facts() -> dict[str, Any]:
    """Which kernels numpy's BLAS chose on this CPU."""
    import numpy as np
    from threadpoolctl import threadpool_info

    blas = [
        {
            key: entry.get(key)
            for key in ("internal_api", "version", "architecture", "threading_layer", "num_threads")
        }
        for entry in threadpool_info()
        if entry.get("user_api") == "blas"
    ]
    first = blas[0] if blas else {}
    return {
        "numpy": np.__version__,
        "blas": blas,
        "blas_architecture": first.get("architecture"),
        "threads": first.get("num_threads"),
    }
