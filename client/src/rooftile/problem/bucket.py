"""Which size stands for a whole range of sizes that share a tuned kernel?

One function for server, client and tuner: where each rounds in its own way, a kernel profiled for one range
is run on another. The version is part of every key that depends on it.
"""

from __future__ import annotations

from rooftile.errors import FieldError

BUCKET_VERSION = 1

MAX_SIZE = 2**31 - 1

# Eight steps between powers of two: a bucket's largest size is at most 12.5 % over its smallest.
_STEPS_LOG2 = 3


def bucket(value: int) -> int:
    """The largest size of the bucket that `value` falls in: 0..16 stand for themselves, above them each
    power of two is followed by eight equal steps. Monotone, idempotent, never below `value`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
        raise FieldError("value", value, f"a whole number from 0 to {MAX_SIZE}")
    if value <= 1 << _STEPS_LOG2:
        return value
    step = 1 << ((value - 1).bit_length() - 1 - _STEPS_LOG2)
    return min(-(-value // step) * step, MAX_SIZE)
