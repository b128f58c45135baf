"""What a local cluster does with the fleets that it starts."""

from __future__ import annotations

import sys
from collections.abc import Collection

from workers.fleet.spec import FleetSpec

REGISTRATIONS_PER_S = 5
"""So many hosts of a fleet register in a second, even on a busy machine."""
MANY = 20
"""While so many hosts are missing, the list of all is not asked for all the time."""
NAMED = 8


def argv(fleet: FleetSpec, first: int, before: int) -> list[str]:
    """The command of one process of a fleet."""
    return [sys.executable, "-P", "-m", "workers.fleet", str(fleet), "--first", str(first), "--before", str(before)]


def names(fleets: Collection[FleetSpec]) -> set[str]:
    """The names of all their hosts."""
    return {host.name for fleet in fleets for host in fleet.hosts()}


def registration_s(fleets: Collection[FleetSpec]) -> float:
    """How long all of them may take to register, in seconds."""
    return sum(fleet.count for fleet in fleets) / REGISTRATIONS_PER_S


def pause_s(missing: int) -> float:
    """How long to wait before the list of hosts is asked for again, in seconds."""
    return 1.0 if missing > MANY else 0.05


def some_of(missing: Collection[str]) -> str:
    """The first few names, for people."""
    shown = ", ".join(sorted(missing)[:NAMED])
    return f"{shown} and {len(missing) - NAMED} more" if len(missing) > NAMED else shown
