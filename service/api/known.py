"""Which tokens were asked for a moment ago, so that a lookup need not ask again?

A revocation is an event: who hears it forgets all tokens, about as soon as the tail reads (a quarter of a
second). Where events cannot be read a token is known for `KNOWN_S` and no longer. From where one was let in
is remembered longer: that lets nobody in, but who sends it from there is no guesser (limits.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from service.store import tokens
from service.store.enums import EventKind
from service.store.records import EventRecord, TokenRecord

KNOWN_S = 1.0
SEEN_S = 600.0
_MOST = 10_000


class KnownTokens:
    """By hash. Safe to use from any thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TokenRecord, float]] = {}
        self._seen: dict[tuple[str, str | None], float] = {}
        self._lock = threading.Lock()
        self._epoch = 0

    def seen(self, hashed: str, host: str | None) -> bool:
        """Whether it was let in from this address in the last minutes."""
        return time.monotonic() < self._seen.get((hashed, host), 0.0)

    def let_in(self, hashed: str, host: str | None) -> None:
        """It came from this address and was valid."""
        with self._lock:
            if len(self._seen) >= _MOST:
                self._seen.clear()
            self._seen[hashed, host] = time.monotonic() + SEEN_S

    def get(self, hashed: str) -> TokenRecord | None:
        known = self._known.get(hashed)
        return known[0] if known is not None and time.monotonic() < known[1] else None

    def epoch(self) -> int:
        """To be asked before the database is, and handed to `keep` with what it said."""
        return self._epoch

    def keep(self, hashed: str, token: TokenRecord, epoch: int, asked_s: float) -> None:
        """As the database had it at `asked_s` (monotonic). Not kept when one was revoked since `epoch`: maybe
        this."""
        with self._lock:
            if epoch != self._epoch:
                return
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[hashed] = (token, asked_s + KNOWN_S)

    def forget(self, hashed: str, host: str | None) -> None:
        """It came from this address and is not valid."""
        with self._lock:
            self._known.pop(hashed, None)
            self._seen.pop((hashed, host), None)

    def told(self, rows: Sequence[EventRecord]) -> None:
        """A listener of the tail."""
        if any(row.kind is EventKind.NOTE and row.to == tokens.REVOKED for row in rows):
            with self._lock:
                self._epoch += 1
                self._known.clear()
