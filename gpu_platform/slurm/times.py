"""Slurm's times: limits (``sbatch --time``), begin times (``sbatch --begin``), and how its commands print them.

Source: the manual pages sbatch(1) and squeue(1) of Slurm 24.05.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

UNLIMITED = ("UNLIMITED", "INFINITE")
MAX_LIMIT_S = 366 * 24 * 3600
_LIMIT = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.ASCII)
_FROM_NOW = re.compile(r"now\s*([+-])\s*([0-9]{1,9})\s*([a-z]*)", re.ASCII)
_UNITS_S = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\s*(am|pm)?", re.ASCII)
_NAMED = {"midnight": time(0), "noon": time(12), "elevenses": time(11), "fika": time(15), "teatime": time(16)}


def read_limit_s(text: str) -> int | None:
    """Read a time limit in seconds: ``90`` (minutes), ``90:30``, ``1:30:00``, ``2-12``, ``2-12:30``, ``2-12:30:00``.

    None: no limit (``UNLIMITED``, ``INFINITE`` or ``0``). Raises ``ValueError``.
    """
    text = text.strip()
    if text.upper() in UNLIMITED:
        return None
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text[:40]!r} is not a time limit: write minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
            "days-hours:minutes or days-hours:minutes:seconds"
        )
    days, *parts = found.groups()
    first, second, third = (int(part or 0) for part in parts)
    if days is not None:
        seconds = ((int(days) * 24 + first) * 60 + second) * 60 + third
    elif parts[2] is not None:
        seconds = (first * 60 + second) * 60 + third
    else:
        seconds = first * 60 + second
    if seconds > MAX_LIMIT_S:
        raise ValueError(f"{text!r} is more than {MAX_LIMIT_S // 86400} days: write UNLIMITED for no limit")
    return seconds or None


def written_limit(seconds: float | None) -> str:
    """The time as Slurm prints it: ``05:00``, ``1:30:00``, ``2-12:00:00``; None: ``UNLIMITED``."""
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def written_long(seconds: float | None) -> str:
    """The time as ``sacct`` and ``scontrol`` print it: ``00:05:00``, ``2-12:00:00``."""
    if seconds is None:
        return "UNLIMITED"
    text = written_limit(seconds)
    if "-" in text:
        return text
    return ":".join(part.zfill(2) for part in ["0", *text.split(":")][-3:])


def written_moment(at: str | datetime | None) -> str:
    """A time as Slurm prints it, local and without a zone: ``2026-12-01T08:00:00``; None: ``Unknown``."""
    if at is None:
        return "Unknown"
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return f"{moment.astimezone():%Y-%m-%dT%H:%M:%S}"


def read_moment(text: str, now: datetime, *, past: bool = False) -> datetime:
    """Read a begin time or a deadline: ``now+1hour``, ``16:00``, ``4pm``, ``noon``, ``tomorrow``, ``2026-12-01``,
    ``2026-12-01T08:00``, ``12/01/26``. ``now`` has a zone; the answer has the same. Raises ``ValueError``.

    ``past``: as ``sacct -S`` reads it. A time of the day is today's, also one that is over, and ``today`` begins at
    midnight.
    """
    wanted = text.strip().lower()
    if (after := _FROM_NOW.fullmatch(wanted)) is not None:
        unit = after[3][:-1] if after[3].endswith("s") and after[3] != "s" else after[3]
        # Slurm takes every beginning of a unit's name: min, hour, h.
        units = {_UNITS_S[name] for name in _UNITS_S if name and name.startswith(unit)} if unit else {1}
        if len(units) != 1:
            raise ValueError(f"{text[:60]!r}: the unit is one of seconds, minutes, hours, days and weeks")
        return _later(now, int(after[1] + after[2]) * units.pop(), text)
    if wanted in ("now", "today", "tomorrow"):
        if wanted == "now" or (wanted == "today" and not past):
            return now
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight if wanted == "today" else midnight + timedelta(days=1)
    if (clock := _clock(wanted)) is not None:
        there = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0)
        return there if past or there > now else there + timedelta(days=1)
    for written in _with_centuries(wanted, now):
        try:
            found = datetime.fromisoformat(written)
        except ValueError:
            continue
        return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
    raise ValueError(
        f"{text[:60]!r} is not a time: write now+1hour, 16:00, 2026-12-01T08:00, 12/01/26, noon or tomorrow"
    )


def _later(now: datetime, seconds: int, text: str) -> datetime:
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"{text[:60]!r} is too far away") from None


def _clock(text: str) -> time | None:
    if text in _NAMED:
        return _NAMED[text]
    found = _CLOCK.fullmatch(text)
    if found is None:
        short = re.fullmatch(r"([0-9]{1,2})\s*(am|pm)", text, re.ASCII)
        if short is None:
            return None
        hour, minute, second, half = int(short[1]), 0, 0, short[2]
    else:
        hour, minute, second, half = int(found[1]), int(found[2]), int(found[3] or 0), found[4]
    if half is not None:
        if not 1 <= hour <= 12:
            raise ValueError(f"{text!r} is not a time of the day")
        hour = hour % 12 + (12 if half == "pm" else 0)
    try:
        return time(hour, minute, second)
    except ValueError:
        raise ValueError(f"{text!r} is not a time of the day") from None


def _with_centuries(text: str, now: datetime) -> list[str]:
    """Ways to write the text as ISO 8601: ``12/01/26`` and ``1201`` are American dates, ``12.01.26`` German ones."""
    day, letter, clock = text.partition("t") if "t" in text else text.partition("-") if "/" in text else (text, "", "")
    clock = f"T{clock}" if letter and clock else ""
    american = re.fullmatch(r"([0-9]{1,2})/?([0-9]{2})(?:/?([0-9]{2}))?", day, re.ASCII)
    german = re.fullmatch(r"([0-9]{1,2})\.([0-9]{2})\.([0-9]{2})?", day, re.ASCII)
    found = [text.upper().replace("Z", "+00:00")]
    if american is not None:
        year = f"20{american[3]}" if american[3] else str(now.year)
        found.insert(0, f"{year}-{american[1]:0>2}-{american[2]}{clock}")
    if german is not None:
        year = f"20{german[3]}" if german[3] else str(now.year)
        found.insert(0, f"{year}-{german[2]}-{german[1]:0>2}{clock}")
    return found
