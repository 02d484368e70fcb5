"""How does a value become the one text that its key is the hash of?"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Sorted names, no spaces, ASCII, no NaN: equal values give equal text on every machine and version."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_key(value: Any) -> str:
    """The sha256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()
