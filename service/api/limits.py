"""How much may one token ask, and one address guess?

Rates hold for a token, and guesses for an address, over all API processes: they are counted in the broker's
Redis, in the process where there is none or it does not answer. A process takes requests from the count in
small lots, so that by far the most cost no round trip. Tokens with the scope admin have no such limits.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict

import structlog
from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter

from service.api.errors import TooManyError
from service.settings import Settings

_log = structlog.get_logger("rooftile.api.limits")

LOTS_A_WINDOW = 20
BROKER_TIMEOUT_S = 0.25
AGAIN_S = 5.0
"""For so long the process counts alone after the broker did not answer."""
MOST_GUESSES = 20
"""Wrong tokens and login codes that an address may send in a minute."""
MOST_ADDRESSES = 10_000
GUESS_WINDOW_S = 60.0


class _Windows:
    """The count of one process, by windows that begin with their first hit. On the monotonic clock: those of
    `limits` are on that of the wall, and where it is set back nobody would be let in until it has caught up.
    Safe to use from any thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def hit(self, key: tuple[str, str], most: int, window_s: float, cost: int) -> bool:
        """Count it, where that is allowed still."""
        now_s = time.monotonic()
        with self._lock:
            count, until_s = self._counts.get(key, (0, 0.0))
            if now_s >= until_s:
                count, until_s = 0, now_s + window_s
                if len(self._counts) > MOST_ADDRESSES:
                    self._counts = {name: of for name, of in self._counts.items() if of[1] > now_s}
            if count + cost > most:
                return False
            self._counts[key] = (count + cost, until_s)
            return True


class Limits:
    """Safe to use from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._requests = settings.requests_per_s and RateLimitItemPerSecond(settings.requests_per_s)
        self._submissions = settings.submissions_per_min and RateLimitItemPerMinute(
            settings.submissions_per_min
        )
        self._lot = max(1, settings.requests_per_s // LOTS_A_WINDOW)
        self._own = _Windows()
        self._shared = (
            None if settings.broker_url is None else FixedWindowRateLimiter(_redis(settings.broker_url))
        )
        self.most_guesses = MOST_GUESSES
        self._alone_until_s = -math.inf
        self._lock = threading.Lock()
        self._lots: dict[str, tuple[int, float]] = {}
        self._guesses: OrderedDict[str, tuple[int, float]] = OrderedDict()

    # -- of a token -------------------------------------------------------------------------------------

    def prepaid(self, owner: str) -> bool:
        """Take a request from this process's lot; False where a new lot has to be fetched, which may wait for
        the broker."""
        if not self._requests:
            return True
        with self._lock:
            left, until_s = self._lots.get(owner, (0, 0.0))
            if left <= 0 or time.monotonic() >= until_s:
                return False
            self._lots[owner] = (left - 1, until_s)
            return True

    def request(self, owner: str) -> None:
        """Count a request; TooManyError over the rate."""
        if not self._requests or self.prepaid(owner):
            return
        self._hit(self._requests, "request", owner, self._lot)
        with self._lock:
            now_s = time.monotonic()
            if len(self._lots) > MOST_ADDRESSES:
                self._lots = {name: lot for name, lot in self._lots.items() if lot[1] > now_s}
            self._lots[owner] = (self._lot - 1, now_s + 1.0)

    def submission(self, owner: str) -> None:
        """Count a job that is submitted; TooManyError over the rate."""
        if self._submissions:
            self._hit(self._submissions, "submission", owner, 1)

    def _hit(self, item: RateLimitItem, what: str, owner: str, cost: int) -> None:
        allowed = self._shared_hit(item, what, owner, cost)
        if allowed is None:
            allowed = self._own.hit((what, owner), item.amount, item.get_expiry(), cost)
        if not allowed:
            per = "second" if item.get_expiry() == 1 else "minute"
            raise TooManyError(
                f"This token may send {item.amount} {what}s a {per}; ask again later.",
                field="Authorization",
                value=owner,
                allowed={f"{what}s_per_{per}": item.amount},
                headers={"Retry-After": "1" if per == "second" else "10"},
            )

    def _shared_hit(self, item: RateLimitItem, what: str, owner: str, cost: int = 1) -> bool | None:
        """Count for all processes, and say whether it is allowed. None: this process counts alone."""
        if self._shared is None or time.monotonic() < self._alone_until_s:
            return None
        try:
            return self._shared.hit(item, what, owner, cost=cost)
        except StorageError as error:
            _log.warning("the broker does not count; this process counts alone", error=str(error))
            self._alone_until_s = time.monotonic() + AGAIN_S
            return None

    # -- of an address ----------------------------------------------------------------------------------

    def guessed(self, host: str | None) -> None:
        """An address sent a wrong token or code; TooManyError where it does so too often."""
        address, now_s = _network(host), time.monotonic()
        with self._lock:
            count, until_s = self._guesses.pop(address, (0, now_s + GUESS_WINDOW_S))
            if now_s >= until_s:
                count, until_s = 0, now_s + GUESS_WINDOW_S
            self._guesses[address] = (count + 1, until_s)
            while len(self._guesses) > MOST_ADDRESSES:
                self._guesses.popitem(last=False)
        # Who is over it here is over it everywhere: the broker is not asked again.
        over = count >= self.most_guesses
        if (
            not over
            and self._shared_hit(RateLimitItemPerMinute(self.most_guesses), "guess", address) is False
        ):
            over, until_s = True, now_s + GUESS_WINDOW_S
            with self._lock:
                self._guesses[address] = (self.most_guesses + 1, until_s)
        if over:
            raise self._wait(until_s - now_s)

    def check_guesser(self, host: str | None) -> None:
        """TooManyError for an address that guessed too often: what it sends now is not even looked at, right
        or wrong. Costs nothing."""
        count, until_s = self._guesses.get(_network(host), (0, 0.0))
        left_s = until_s - time.monotonic()
        if count > self.most_guesses and left_s > 0:
            raise self._wait(left_s)

    def _wait(self, seconds: float) -> TooManyError:
        return TooManyError(
            "Too many wrong tokens or login codes came from this address; wait a minute.",
            field="Authorization",
            allowed={"wrong_per_minute": self.most_guesses},
            headers={"Retry-After": str(math.ceil(seconds))},
        )


def _network(host: str | None) -> str:
    """The address; of IPv6 the network that one customer has, whose addresses are without number."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return "elsewhere"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:  # on a socket of both kinds, that of `--host ::`
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _redis(url: str) -> Storage:
    return RedisStorage(
        url.replace("redis+socket", "redis+unix"),
        wrap_exceptions=True,
        socket_timeout=BROKER_TIMEOUT_S,
        socket_connect_timeout=BROKER_TIMEOUT_S,
    )
