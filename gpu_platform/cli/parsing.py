"""What people type: sizes, times, shapes of gangs, environment variables. Errors say what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING

import typer

from gpu_platform.cli.nearest import nearest, not_one_of

if TYPE_CHECKING:
    from gpu_platform.slurm.amounts import EndWarning

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", re.IGNORECASE | re.ASCII)
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_MIB = 2**20

_PART = r"(?:(\d+(?:\.\d+)?){})?"
_UNITS = re.compile("".join(_PART.format(unit) for unit in ("d", "h", "m(?!s)", "s", "ms")), re.IGNORECASE | re.ASCII)
_UNIT_S = (86400, 3600, 60, 1, 0.001)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*(GB/s|GBps|Gb/s|Gbps|Gbit/s)?", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{2}):(\d{2})", re.ASCII)
_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d{2}))?", re.ASCII)

Shape = tuple[int | None, int | None]
"""(hosts, GPUs per host). None: not given."""


def memory_mib(text: str) -> int:
    """Read an amount of memory in MiB, rounded up: ``16GiB``, ``16g``, ``16G`` (all 16384), ``80GB`` (decimal:
    76294), ``16384MiB``."""
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2).lower() if match else ""
    if match is None or unit in ("", "b", "i", "ib"):
        raise typer.BadParameter(f"{text!r} is not a size: write a number with its unit, like 16GiB or 16384MiB")
    factors = _DECIMAL if unit.endswith("b") and "i" not in unit else _BINARY
    return math.ceil(float(match.group(1)) * factors[unit[0]] / _MIB)


def bandwidth_gb_s(text: str) -> float:
    """Read a bandwidth in GB/s: ``100GB/s``, ``12.5``, ``400Gb/s`` (bits: 50)."""
    match = _BANDWIDTH.fullmatch(str(text).strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a bandwidth: write it like 100GB/s (bytes) or 400Gb/s (bits)")
    in_bits = (match.group(2) or "").startswith("Gb")
    return float(match.group(1)) / (8.0 if in_bits else 1.0)


def duration_s(text: str) -> float:
    """Read a duration in seconds: ``1``, ``1s``, ``500ms``, ``2m``, ``1h30m``, ``1d``, ``01:30:00`` (hours first),
    ``1-12:00:00``."""
    text = str(text).strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    if match := _CLOCK.fullmatch(text) or _DAYS.fullmatch(text):
        days, hours, minutes, seconds = (*match.groups(), None)[:4]
        return float(((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0))
    match = _UNITS.fullmatch(text) if text else None
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 30s, 500ms, 90m, 1h30m, 01:30:00 or 1-12:00:00 (days-hours:minutes:seconds)"
        )
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNIT_S, strict=True) if part)


def moment(text: str) -> datetime:
    """Read a time: ``2026-12-01T08:00``, ``2026-12-01 08:00Z``, ``2026-12-01`` (midnight), ``16:30`` (the next one), or
    ``+2h`` (from now). Without a zone: local time."""
    text = str(text).strip()
    now = datetime.now(UTC)
    try:
        if match := re.fullmatch(r"(?:now)?\+\s*(.+)", text):
            return now + timedelta(seconds=duration_s(match.group(1)))
        if re.fullmatch(r"\d{1,2}:\d{2}(?::\d{2})?", text, re.ASCII):
            there = time.fromisoformat(text.rjust(5 if text.count(":") == 1 else 8, "0"))
            today = datetime.combine(now.astimezone().date(), there).astimezone()
            tomorrow = datetime.combine(now.astimezone().date() + timedelta(days=1), there).astimezone()
            return today if today > now else tomorrow
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, typer.BadParameter) as error:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-12-01T08:00, 2026-12-01T08:00Z, 16:30 or +2h"
        ) from error


def warning(text: str) -> EndWarning:
    """Read a signal before the end: ``USR1@60``, as ``sbatch --signal``."""
    from gpu_platform.slurm.amounts import read_signal

    try:
        return read_signal(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def names(text: str) -> list[str]:
    """Read names with commas between them: ``j-1,j-2``."""
    found = [name.strip() for name in str(text).split(",")]
    if not all(found):
        raise typer.BadParameter(f"{text!r} is not a list of names: write one, or several with commas between them")
    return found


def host_patterns(text: str) -> list[str]:
    """Read patterns of host names: ``dgx[1-4,7],gpu8``. A comma inside brackets belongs to its pattern."""
    found = [pattern.strip() for pattern in re.split(r",(?![^\[]*\])", str(text))]
    if not all(found):
        raise typer.BadParameter(f"{text!r} is not a list of hosts: write dgx1, dgx*, dgx[1-4], or several with commas")
    return found


def priority(text: str) -> int | str:
    """Read a priority: a number, or the name of a level."""
    text = str(text).strip()
    return int(text) if re.fullmatch(r"[+-]?\d+", text, re.ASCII) else text


def whole_s(text: str) -> int:
    """As :func:`duration_s`, for values that are counted in whole seconds."""
    seconds = duration_s(text)
    if seconds != int(seconds):
        raise typer.BadParameter(f"{text!r} is {seconds:g} seconds: write whole seconds")
    return int(seconds)


def limit_s(text: str) -> int:
    """As :func:`whole_s`, for a limit above 0. A number needs its unit: Slurm would read it as minutes."""
    if _NUMBER.fullmatch(text.strip()):
        raise typer.BadParameter(f"{text!r} is not a time, as its unit is missing: write {text}s, {text}m or {text}h")
    seconds = whole_s(text)
    if seconds == 0:
        raise typer.BadParameter("a time limit of 0 lets nothing run; leave it out for no limit")
    return seconds


def gang_shape(gpus: int | None, hosts: int | None, gpus_per_host: int | None) -> Shape:
    """Turn ``--gpus`` (the total), ``--hosts`` and ``--gpus-per-host`` into hosts and GPUs per host."""
    for option, value in (("--gpus", gpus), ("--hosts", hosts), ("--gpus-per-host", gpus_per_host)):
        if value is not None and value < 1:
            raise typer.BadParameter(f"{option} {value}: must be at least 1")
    if gpus is None:
        return hosts, gpus_per_host
    if hosts is None:
        if gpus_per_host is None:
            return 1, gpus
        if gpus % gpus_per_host:
            raise typer.BadParameter(
                f"--gpus {gpus} cannot be had with --gpus-per-host {gpus_per_host}: that would be "
                f"{gpus / gpus_per_host:.2f} hosts; use {_neighbours(gpus, gpus_per_host)} GPUs"
            )
        return gpus // gpus_per_host, gpus_per_host
    if gpus_per_host is not None:
        if hosts * gpus_per_host != gpus:
            raise typer.BadParameter(
                f"--gpus {gpus} contradicts --hosts {hosts} x --gpus-per-host {gpus_per_host} = "
                f"{hosts * gpus_per_host}; leave one of the three out"
            )
        return hosts, gpus_per_host
    if gpus % hosts:
        raise typer.BadParameter(
            f"--gpus {gpus} is the total and cannot be divided by --hosts {hosts}; "
            f"use {_neighbours(gpus, hosts)} GPUs, or --gpus-per-host"
        )
    return hosts, gpus // hosts


def environment(items: Sequence[str], current: Mapping[str, str]) -> dict[str, str]:
    """Read environment variables. ``K=V`` sets one; ``K`` alone takes the value that it has here."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name:
            raise typer.BadParameter(f"--env {item!r}: write NAME=VALUE, or NAME to pass on its value from here")
        if not equals:
            if name not in current:
                raise typer.BadParameter(f"--env {name}: it is not set here; write {name}=VALUE")
            value = current[name]
        found[name] = value
    return found


def _neighbours(gpus: int, divisor: int) -> str:
    below = gpus // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


_NOTIFY = ("start", "end", "fail", "requeue", "limit", "promise")


def notify_rule(text: str) -> dict[str, object] | None:
    """Read who is told of what: ``end``, ``start,fail:team``, ``all:ann@lab.example``. None: nobody (``none``)."""
    words, _, to = text.partition(":")
    if text == "none":
        return None
    on = [word.strip().lower() for word in words.split(",")]
    for word in on:
        if word not in (*_NOTIFY, "all"):
            raise typer.BadParameter(not_one_of(word, (*_NOTIFY, "all", "none")))
    rule: dict[str, object] = {"events": [*_NOTIFY] if "all" in on else [*dict.fromkeys(on)]}
    if to:
        rule["address" if "@" in to else "target"] = to
    return rule


def states(texts: Sequence[str] | None, known: Sequence[str]) -> list[str] | None:
    """Read names of states in any case. One that is only like a known one was mistyped; others the service may know."""
    found = None if not texts else [text.upper() for text in texts]
    for state in found or ():
        if state not in known and (meant := nearest(state, known)):
            raise typer.BadParameter(f"there is no state {state}. Did you mean {meant}?", param_hint="'--state'")
    return found
