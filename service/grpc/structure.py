"""How large a message becomes once it is read, without reading it: two bytes are a message in a list, and 60 as one."""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types (Protocol Buffers documentation, "Encoding"). Groups, 3 and 4, are in no message of ours."""
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10
_MORE = 0x80
"""The bit of a byte after which a number goes on."""
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_SHORT_ESCAPES = b'\b\t\n\f\r"\\'
"""What JSON writes as two characters. Other control characters become six."""
_LONG_ESCAPES = bytes(byte for byte in range(0x20) if byte not in _SHORT_ESCAPES)


class UnreadableMessage(ValueError):
    """The bytes are no message of this type."""


def at_most(data: bytes, kind: Descriptor, most: int) -> bool:
    """False if the message has more than ``most`` values: numbers, texts and messages, however deep. Raises
    :class:`UnreadableMessage`."""
    found, unread = 0, [(0, len(data), kind)]
    while unread:
        at, end, of = unread.pop()
        inside = _inside(of)
        while at < end:
            # Nearly all tags and sizes have one byte. An array has a million of them, so nothing is called for those.
            tag = data[at]
            at += 1
            if tag >= _MORE:
                tag, at = _varint(data, at - 1, end)
            found += 1
            wire = tag & 7
            if wire == _LENGTH and at < end:
                size = data[at]
                at += 1
                if size >= _MORE:
                    size, at = _varint(data, at - 1, end)
                if tag in inside:
                    if (child := inside[tag]) is None:
                        found += size  # numbers in a row, of a byte or more each
                    else:
                        unread.append((at, at + size, child))
                at += size
            elif wire == _VARINT:
                _, at = _varint(data, at, end)
            elif wire in _FIXED_BYTES:
                at += _FIXED_BYTES[wire]
            else:
                raise UnreadableMessage
            if found > most:
                return False
        if at > end:
            raise UnreadableMessage
    return True


@cache
def _inside(kind: Descriptor) -> dict[int, Descriptor | None]:
    """Tags of what has a length and values inside -> the type of those values. None: they are numbers. Texts have
    none."""
    fields = [field for field in kind.fields if field.type not in _TEXTS]
    return {field.number << 3 | _LENGTH: field.message_type for field in fields}


def escaped_bytes(data: bytes) -> int:
    """At most so many bytes the texts of the message have in JSON."""
    short, long = (len(data) - len(data.translate(None, each)) for each in (_SHORT_ESCAPES, _LONG_ESCAPES))
    return len(data) + short + 5 * long


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where the next field begins."""
    found = shift = 0
    for place in range(at, min(end, at + _LONGEST_VARINT)):
        byte = data[place]
        found |= (byte & 0x7F) << shift
        if byte < _MORE:
            return found, place + 1
        shift += 7
    raise UnreadableMessage
