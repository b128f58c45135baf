"""Slurm's lists of hosts: ``n[01-04,7],login`` names n01, n02, n03, n04, n7 and login.

Each range keeps its own width of digits, as in Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, product

MAX_HOSTS = 65536
"""A list never expands to more: ``n[0-999999999]`` must not fill the memory."""
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", re.ASCII)
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,12})([^0-9]*)", re.ASCII | re.DOTALL)


def expand(text: str) -> list[str]:
    """The hosts that a list names, in its order, each once. Raises ``ValueError``."""
    found: dict[str, None] = {}
    for count, name in enumerate(name for part in _split(text) for name in _expanded(part)):
        if count >= MAX_HOSTS:  # also if it names some of them again and again
            raise ValueError(f"{text[:60]!r} names more than {MAX_HOSTS} hosts")
        found[name] = None
    return list(found)


def expand_or_none(text: str) -> list[str]:
    """The hosts of a list; none, if it is wrong, which was said before."""
    try:
        return expand(text)
    except ValueError:
        return []


def compress(names: Iterable[str]) -> str:
    """The shortest usual list for these hosts: names that differ in their last number share brackets."""
    parsed = [_parsed(name) for name in dict.fromkeys(names)]
    lists = []
    for (before, after, width), group in groupby(parsed, key=lambda one: one[:3]):
        numbers = [number for *_, number in group]
        if width is None:
            lists += [f"{before}{after}"] * len(numbers)
            continue
        ranges = _ranges(numbers)
        written = ",".join(f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in ranges)
        bracketed = len(ranges) > 1 or ranges[0][0] != ranges[0][1]
        lists.append(f"{before}[{written}]{after}" if bracketed else f"{before}{written}{after}")
    return ",".join(lists)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not parts or ",".join(parts) != text.strip(",") or ",," in text:
        raise ValueError(f"{text[:60]!r} is not a list of hosts: write n1,n2 or n[01-04,7]")
    return [part.strip() for part in parts]


def _expanded(part: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    choices: list[list[str]] = []
    size = 1
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            if piece and not _NAME.fullmatch(piece):
                raise ValueError(f"{part[:60]!r} is not a list of hosts: write n1,n2 or n[01-04,7]")
            choices.append([piece])
            continue
        numbers = _numbers(piece, part)
        size *= len(numbers)
        if size > MAX_HOSTS:
            raise ValueError(f"{part[:60]!r} names more than {MAX_HOSTS} hosts")
        choices.append(numbers)
    if not any(pieces):
        raise ValueError(f"{part[:60]!r} is not a list of hosts: write n1,n2 or n[01-04,7]")
    return ("".join(chosen) for chosen in product(*choices))


def _numbers(text: str, part: str) -> list[str]:
    found: list[str] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{part[:60]!r}: {item.strip()[:40]!r} is not a number or a range like 01-04")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"{part[:60]!r}: the range {item.strip()} is empty")
        if last - first >= MAX_HOSTS:
            raise ValueError(f"{part[:60]!r} names more than {MAX_HOSTS} hosts")
        width = len(match[1]) if match[1].startswith("0") or match[2] is None else 1
        found += [f"{number:0{width}}" for number in range(first, last + 1)]
    return found


def _parsed(name: str) -> tuple[str, str, int | None, int]:
    match = _LAST_NUMBER.fullmatch(name)
    if match is None:
        return name, "", None, 0
    digits = match[2]
    # Numbers without leading zeros share brackets whatever their length; others need one width.
    return match[1], match[3], len(digits) if digits.startswith("0") and len(digits) > 1 else 1, int(digits)


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
