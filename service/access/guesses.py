"""Requests without a valid token: how many one address may send.

Each such request costs a look into the database and an entry in the audit log. An address that sends too many is told
to wait (429), and costs neither until then. Valid tokens are not held up by it: many people may share one address,
that of a proxy. Which tokens are valid is then known from one list, read at most once a second.

All of this is in the memory of this process: two service processes behind a proxy allow up to twice as much.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_platform.domain.errors import NotSignedIn, TooManyRequests
from gpu_platform.settings.service import RateLimit
from gpu_platform.store.access import tokens
from service.http import buckets
from service.http.networks import network_of

REMEMBERED_S = 2.0
"""How long a token is refused without looking again, after it was not valid. No token becomes valid later, except one
that somebody guessed or used before it was made."""
LIST_KEPT_S = 1.0
MAX_REMEMBERED = 65_536
NOTED_EVERY_S = 60.0
"""How often the refusals of one address that sends too many are summed up in the audit log."""


@dataclass
class _Held:
    """An address that must wait."""

    until: float
    since_note: int = 0
    noted_at: float = -math.inf


class Guesses:
    """Counts requests without a valid token, by address.

    ``valid_hashes`` reads the hashes of all tokens that are valid now.
    ``limit`` None: an address may send as many as it likes.
    """

    def __init__(self, limit: RateLimit | None, valid_hashes: Callable[[], frozenset[str]]) -> None:
        self._limit = limit
        self._bucket = None if limit is None else buckets.bucket(limit, buckets.memory())
        self._read_valid = valid_hashes
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._refused: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._valid: frozenset[str] = frozenset()
        self._valid_at = -math.inf

    def check(self, peer: str | None, credential: str) -> None:
        """Call it before the token is looked up. Raises :class:`NotSignedIn` if it was not valid a moment ago, and
        :class:`TooManyRequests` if it is not valid and its address must wait."""
        key = tokens.hash_of(credential)
        with self._lock:
            refused_at, message = self._refused.get(key, (-math.inf, ""))
            held = self._held.get(network_of(peer))
        if time.monotonic() - refused_at < REMEMBERED_S:
            raise NotSignedIn(message)
        if held is not None and time.monotonic() < held.until and key not in self._valid_now():
            raise self._too_many(peer, held)

    def note(self, peer: str | None, credential: str | None, refusal: NotSignedIn) -> NotSignedIn | TooManyRequests:
        """Count a request without a valid token. Returns what to answer: ``refusal``, or that its address must wait.

        ``credential`` None: it had none.
        """
        network, at = network_of(peer), time.monotonic()
        if credential is not None:
            with self._lock:
                refused_at, _ = self._refused.get(tokens.hash_of(credential), (-math.inf, ""))
                if at - refused_at >= REMEMBERED_S:
                    _put(self._refused, tokens.hash_of(credential), (at, refusal.message))
        if self._bucket is None:
            return refusal
        taken = self._bucket.limit(network)
        if not taken.limited:
            return refusal
        with self._lock:
            held = self._held.get(network) or _Held(at)
            held.until = at + taken.state.retry_after
            _put(self._held, network, held)
        return self._too_many(peer, held)

    def to_record(self, peer: str | None) -> str | None:
        """What the audit log says about requests of an address that must wait: now and then one entry for all of them.
        None: nothing now."""
        with self._lock:
            held = self._held.get(network_of(peer))
            if held is None:
                return None
            held.since_note += 1
            at = time.monotonic()
            if at - held.noted_at < NOTED_EVERY_S:
                return None
            count, held.since_note, held.noted_at = held.since_note, 0, at
        return (
            f"too many requests without a valid token from this address: {count} refused with 429 since the last entry"
        )

    def _valid_now(self) -> frozenset[str]:
        # One thread reads; the others go on with the list that there is.
        if time.monotonic() - self._valid_at >= LIST_KEPT_S and self._reading.acquire(blocking=self._valid_at < 0):
            try:
                if time.monotonic() - self._valid_at >= LIST_KEPT_S:
                    self._valid = self._read_valid()
                    self._valid_at = time.monotonic()
            finally:
                self._reading.release()
        return self._valid

    def _too_many(self, peer: str | None, held: _Held) -> TooManyRequests:
        assert self._limit is not None
        return TooManyRequests(
            f"too many requests without a valid token from {peer or 'a local client'}: at most {self._limit.per_s:g} a "
            f"second, after the first {self._limit.burst}. Use a valid token: such requests are answered",
            retry_after_s=max(held.until - time.monotonic(), 0.001),
        )


def _put(kept: OrderedDict[str, Any], key: str, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)
