"""Numbers for our ids, because programs for Slurm count with ``SLURM_JOB_ID`` and look for digits in sbatch's answer.

A number is the id, written in another way: nobody counts, and nobody looks anything up (ADR 70). It has 24 digits,
that of an element of an array more. Bash keeps the last 64 bits of a larger number; bit 63 is always 0, so that they
are never below 0 for it, and they differ from job to job.

::

    bits      0 to 62         63   64        65 to 76       77   from 78
    content   id, low bits    0    1: array  id, high bits  1    of an element: its index + 1
"""

from __future__ import annotations

import re

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 15
_LOW = 63
_ZERO, _ARRAY, _HIGH, _MARK, _INDEX = 63, 64, 65, 77, 78
_ID = re.compile(rf"([ja])-([{_ALPHABET}]{{{_LENGTH}}})(?:\.([0-9]{{1,7}}))?", re.ASCII)
_ELEMENT = re.compile(r"(a-[0-9a-z]{1,40})_([0-9]{1,7})", re.ASCII)
_NUMBER = re.compile(r"([0-9]{24,31})(?:_([0-9]{1,7}))?", re.ASCII)


def number_of(job: str) -> str:
    """The number of a job, an array or an element. An id of another form is its own number."""
    found = _ID.fullmatch(job)
    if found is None:
        return job
    value = 0
    for letter in found[2]:
        value = value << 5 | _ALPHABET.index(letter)
    place = 0 if found[3] is None else int(found[3]) + 1
    # Elements differ in the low bits, too: scripts make ports of them.
    low = (value + place) & ((1 << _LOW) - 1)
    number = low | (found[1] == "a") << _ARRAY | (value >> _LOW) << _HIGH | 1 << _MARK | place << _INDEX
    return str(number)


def id_of(text: str) -> str:
    """Our id for a number, also for ``NUMBER_7`` and ``a-…_7``, an element. Every other text is what it is."""
    if (element := _ELEMENT.fullmatch(text)) is not None:
        return f"{element[1]}.{int(element[2])}"
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    number = int(found[1])
    is_array, place = bool(number >> _ARRAY & 1), number >> _INDEX
    if number >> _ZERO & 1 or not number >> _MARK & 1 or (place and not is_array):
        return text
    if found[2] is not None and (place or not is_array):
        return text
    low = (number - place) & ((1 << _LOW) - 1)
    value = low | (number >> _HIGH & (1 << _MARK - _HIGH) - 1) << _LOW
    letters = "".join(_ALPHABET[value >> 5 * at & 31] for at in reversed(range(_LENGTH)))
    index = found[2] if found[2] is not None else str(place - 1) if place else None
    return f"{'a' if is_array else 'j'}-{letters}" + ("" if index is None else f".{int(index)}")


def with_id_of(text: str) -> str:
    """``NUMBER:PATH`` with our id. Every other text is what it is."""
    number, colon, rest = text.partition(":")
    return f"{id_of(number)}{colon}{rest}"


def shown_id(job: str) -> str:
    """The id as Slurm's commands print it: a number, and of an element ``NUMBER_INDEX``."""
    array, dot, index = job.partition(".")
    return f"{number_of(array)}_{index}" if dot else number_of(job)
