"""Hosts that were lost together, and what they have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DomainLoss:
    """Most hosts of a domain are lost."""

    level: str
    name: str
    hosts: tuple[str, ...]
    """Those that were lost, by name."""
    of: int
    """So many hosts the domain has in all."""

    def __str__(self) -> str:
        return f"{self.level} {self.name} ({len(self.hosts)} of {self.of} hosts)"
