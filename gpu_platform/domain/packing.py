"""Text in few bytes, for messages of Temporal, which are at most 2 MiB: what a lost database is restored from."""

from __future__ import annotations

import base64
import zlib

MOST_TEXT = 8 * 1024 * 1024
"""Longer texts are not packed, characters."""
MOST_PACKED = 768 * 1024
"""The most bytes of a packed text."""


def pack(text: str) -> str | None:
    """The text, compressed. None: it is too long to be carried along."""
    if len(text) > MOST_TEXT:
        return None
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    return packed if len(packed) <= MOST_PACKED else None


def unpack(packed: str) -> str:
    """The text that was packed. Raises ``ValueError`` for anything else, and for a text that is too long."""
    try:
        reader = zlib.decompressobj()
        found = reader.decompress(base64.b64decode(packed), 4 * MOST_TEXT)
    except zlib.error as error:
        raise ValueError(f"this is no packed text: {error}") from None
    if reader.unconsumed_tail or not reader.eof:
        raise ValueError("this is no packed text: it is too long, or cut")
    return found.decode()
