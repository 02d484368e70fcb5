"""How long may a run take before it counts as hanging?"""

from __future__ import annotations

# Between these, 20 times what is expected.
LEAST_S = 2.0
MOST_S = 30.0
FACTOR = 20.0
# Nothing of ours is this slow: 1 GFLOP/s and 0.5 GB/s, for problems without a best time yet.
_SLOW_FLOPS = 1e9
_SLOW_BYTES = 0.5e9


# On a GPU nothing of ours is slower than 100 GFLOP/s and 5 GB/s.
_GPU_SLOW_FLOPS = 1e11
_GPU_SLOW_BYTES = 5e9
GPU_MOST_S = 10.0


def gpu_limit_s(flops: float, nbytes: float, best_us: float | None) -> float:
    """The watchdog of one run on a GPU."""
    if best_us is not None and best_us > 0.0:
        wanted = FACTOR * best_us * 1e-6
    else:
        wanted = 4.0 * (flops / _GPU_SLOW_FLOPS + nbytes / _GPU_SLOW_BYTES)
    return min(GPU_MOST_S, max(LEAST_S, wanted))


def expected_s(flops: float, nbytes: float, best_us: float | None) -> float:
    """Seconds that one run should take at most."""
    if best_us is not None and best_us > 0.0:
        return best_us * 1e-6
    return (flops / _SLOW_FLOPS + nbytes / _SLOW_BYTES) / FACTOR * 4.0


def run_limit_s(flops: float, nbytes: float, best_us: float | None) -> float:
    """The watchdog of one run."""
    return min(MOST_S, max(LEAST_S, FACTOR * expected_s(flops, nbytes, best_us)))
