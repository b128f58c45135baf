"""A fleet as the command line writes it: ``rack*=dgx-h100:1000``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.topology.machine_file import find_machine, is_machine_file

HOSTS_PER_LEAF = 32
LEAVES_PER_SPINE = 8
HOSTS_PER_PROCESS = 1000
"""So many hosts one process carries: a thousand take it about a third of a core."""
MAX_HOSTS = 10_000
_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\*([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class FleetHostSpec:
    """One host of a fleet, and where it is."""

    name: str
    leaf: str
    spine: str


@dataclass(frozen=True)
class FleetSpec:
    """Many simulated hosts of one machine type. The ``*`` in ``pattern`` is the number of the host."""

    pattern: str
    machine: str
    count: int

    @classmethod
    def is_one(cls, text: str) -> bool:
        """True if ``text`` is meant as a fleet, and not as one host."""
        return "*" in text.partition("=")[0]

    @classmethod
    def parse(cls, text: str) -> FleetSpec:
        """Read ``PATTERN=MACHINE:COUNT``. Raises :class:`InvalidRequest`."""
        pattern, _, rest = text.partition("=")
        machine, _, count = rest.rpartition(":")
        if not machine or not count.isdigit() or not _PATTERN.fullmatch(pattern):
            raise InvalidRequest(
                f"{text!r} is no fleet: write PATTERN=MACHINE:COUNT with one * in the pattern, e.g. rack*=dgx-h100:1000"
            )
        if not 1 <= int(count) <= MAX_HOSTS:
            raise InvalidRequest(f"{text!r}: a fleet has 1 to {MAX_HOSTS} hosts")
        machine = str(Path(machine).resolve()) if is_machine_file(machine) else machine
        find_machine(machine)
        return cls(pattern, machine, int(count))

    def __str__(self) -> str:
        return f"{self.pattern}={self.machine}:{self.count}"

    @property
    def name(self) -> str:
        """The name of the fleet: its pattern without the star."""
        return self.pattern.replace("*", "").strip("._-") or "fleet"

    def hosts(self) -> Iterator[FleetHostSpec]:
        """All hosts: ``rack0001`` to ``rack1000``, 32 below each leaf and 8 leaves below each spine."""
        digits = len(str(self.count))
        for index in range(self.count):
            leaf = index // HOSTS_PER_LEAF
            yield FleetHostSpec(
                name=self.pattern.replace("*", str(index + 1).zfill(digits)),
                leaf=f"{self.name}-leaf-{leaf + 1}",
                spine=f"{self.name}-spine-{leaf // LEAVES_PER_SPINE + 1}",
            )

    def parts(self) -> list[tuple[int, int]]:
        """The hosts of each process of the fleet: from this index to before that one."""
        return [
            (first, min(first + HOSTS_PER_PROCESS, self.count)) for first in range(0, self.count, HOSTS_PER_PROCESS)
        ]
