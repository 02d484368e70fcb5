"""What can go wrong in the store, and who can do something about it?

StoreError                    one sentence for a person, never a password
  DatabaseUnreachable         nobody answers there: start it, or correct ROOFTILE_DATABASE_URL
  StoreBusy                   try again: a lock, a deadlock or the pool was not to be had in time
    Conflict                  another process changed the row first
  StoreFull                   no space left where the database lives
  StoreReadOnly               the file or the role does not allow writing
  StoreDamaged                the file is not a database, or is damaged
  UnsuitableDatabase          SQLite in memory or on a network disk: use Postgres
  SchemaMismatch              tables are missing, older or newer than this code: `rooftile migrate`
  NotFound                    no row with this id
  IllegalTransition           the transition table has no such move
  ArtifactMismatch            bytes do not have the hash they came with
  ReleasePinned               a pinned release is not replaced
  TokenEnded                  a token that was revoked or has expired is to be the admin's: give another
  TokenOfAnother              a token that a client has is to be the admin's: give another
  IdempotencyConflict         the same Idempotency-Key came with another body
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all: its text is one clear sentence."""


class DatabaseUnreachable(StoreError):  # a state of the world, named as the contract names it
    """Nobody answers at the database's address."""


class StoreBusy(StoreError):
    """A lock or a connection was not to be had in time; trying again is right."""


class Conflict(StoreBusy):
    """Another process changed the row between our look and our write."""


class StoreFull(StoreError):
    """The disk the database lives on is full."""


class StoreReadOnly(StoreError):
    """The database may not be written by us."""


class StoreDamaged(StoreError):
    """The file is not a database, or is damaged."""


class UnsuitableDatabase(StoreError):
    """This address can not hold a database that several processes share."""


class SchemaMismatch(StoreError):
    """The tables are not those of this version of the code."""


class NotFound(StoreError):
    """No row with this id."""

    def __init__(self, what: str, key: object) -> None:
        super().__init__(f"There is no {what} {key}.")
        self.what = what
        self.key = key


class IllegalTransition(StoreError):
    """A move that the transition table does not have."""

    def __init__(self, what: str, key: object, source: str, to: str, allowed: tuple[str, ...]) -> None:
        options = ", ".join(allowed) if allowed else "nothing: it is final"
        super().__init__(f"{what} {key} is {source} and can not become {to}; it can become {options}.")
        self.what = what
        self.key = key
        self.source = source
        self.to = to
        self.allowed = allowed


class TokenEnded(StoreError):
    """A token that has ended does not come back."""


class TokenOfAnother(StoreError):
    """A client's token does not become the service's own."""


class ArtifactMismatch(StoreError):
    """Bytes whose sha256 is another than the one they came with."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"An artifact came with sha256 {expected} but has {actual}.")
        self.expected = expected
        self.actual = actual


class ReleasePinned(StoreError):
    """The published release of this problem, device and policy is pinned."""

    def __init__(self, release_id: int) -> None:
        super().__init__(f"Release {release_id} is pinned; unpin it before another takes its place.")
        self.release_id = release_id


class IdempotencyConflict(StoreError):
    """The same Idempotency-Key was used with another body."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Idempotency-Key {key!r} was used before with another body.")
        self.key = key
