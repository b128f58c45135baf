"""How hosts are connected: hosts under leaf switches, leaf switches under spines."""

from __future__ import annotations

from gpu_platform.domain.placement import TopologyLevel

NETWORK_GB_S = 12.0
"""One rank's way to another host, GB/s: NCCL's default for a 100 Gbit/s port (``NET_BW`` in ``src/graph/topo.h``).
Hosts do not report their NICs, so this is an assumption, the same at every level."""

FABRIC_LEVELS = (TopologyLevel.LEAF, TopologyLevel.SPINE, TopologyLevel.ANY)
"""Levels between hosts, best first."""


class Fabric:
    """Numbers for leaf and spine switches, so that arrays can hold them.

    A leaf's name needs to be unique only under its spine. A host that does not tell its leaf or
    spine shares it with nobody.
    """

    def __init__(self) -> None:
        self._leaves: dict[tuple[str | None, ...], int] = {}
        self._spines: dict[tuple[str | None, ...], int] = {}

    def locate(self, host: str, leaf: str | None, spine: str | None) -> tuple[int, int]:
        """(leaf number, spine number) of a host."""
        leaf_key = (spine, leaf) if leaf is not None else (None, None, host)
        spine_key = (spine,) if spine is not None else (None, host)
        return (
            self._leaves.setdefault(leaf_key, len(self._leaves)),
            self._spines.setdefault(spine_key, len(self._spines)),
        )
