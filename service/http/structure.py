"""How many values a JSON text has, without reading it into memory: `[],` is three bytes, and 80 as objects."""

from __future__ import annotations

import re

_OUTSIDE = (b"[", b"{", b",")
"""Each value but the first comes after one of them."""
# Possessive: nothing is kept to go back to, so a string of a million escapes takes no memory.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)
_PIECE_BYTES = 64 * 1024
"""Other threads go on between two pieces."""


def at_most(body: bytes | bytearray, most: int) -> bool:
    """False if ``body`` has more than ``most`` values. What is in strings does not count."""
    if sum(body.count(mark) for mark in _OUTSIDE) <= most:
        return True
    return _count(body, most) <= most


def _count(body: bytes | bytearray, most: int) -> int:
    found = at = 0
    while at < len(body) and found <= most:
        end = min(at + _PIECE_BYTES, len(body))
        outside = _STRING.sub(b"", body[at:end])
        begun = outside.find(b'"')
        if begun >= 0:
            start = end - (len(outside) - begun)
            closed = _REST_OF_STRING.match(body, start + 1)
            end = len(body) if closed is None else closed.end()
            outside = outside[:begun]
        found += sum(outside.count(mark) for mark in _OUTSIDE)
        at = end
    return found
