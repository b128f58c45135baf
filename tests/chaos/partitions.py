"""Faults of the network: links cut in one or both directions, slow and lossy ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from tests.chaos.arena import Arena, Disruption, between, choose
from tests.chaos.network import LinkName, Network

CUT: dict[str, Any] = {"cut": True}
OPEN: dict[str, Any] = {}
WAYS = ((CUT, CUT), (CUT, OPEN), (OPEN, CUT))
"""Both directions, or one of them."""
LEAST_S, MOST_S = 1.0, 15.0
SLOW_S = 0.3
LOSS = 0.1


async def cut_link(arena: Arena, draw: float) -> None:
    """One pair of processes does not hear each other, or one of them not the other."""
    link = choose(_network(arena).links, draw)
    await _shape(arena, "cut_link", [link], choose(WAYS, draw * 31 % 1.0), draw)


async def cut_host(arena: Arena, draw: float) -> None:
    """A host is cut off from everything: service, Temporal and other hosts."""
    child = choose(list(arena.cluster.nodes.values()), draw)
    await _shape(arena, "cut_host", _network(arena).of([child.name]), choose(WAYS, draw * 31 % 1.0), draw)


async def cut_rack(arena: Arena, draw: float) -> None:
    """Two racks cannot reach each other; the control plane is in that of the last host."""
    config = arena.cluster.config.nodes
    names = [arena.cluster.nodes[node.name].name for node in config if node.leaf == config[0].leaf]
    await _shape(arena, "cut_rack", _network(arena).of(names), (CUT, CUT), draw)


async def cut_service(arena: Arena, draw: float) -> None:
    """The service is away for every host, and for nobody else."""
    links = [link for link in _network(arena).links if link.target == "service"]
    await _shape(arena, "cut_service", links, (CUT, CUT), draw)


async def cut_temporal(arena: Arena, draw: float) -> None:
    links = [link for link in _network(arena).links if link.target == "temporal"]
    await _shape(arena, "cut_temporal", links, (CUT, CUT), draw)


async def cut_control_plane(arena: Arena, draw: float) -> None:
    """Every host alone: service and Temporal are away for all of them."""
    nodes = {child.name for child in arena.cluster.nodes.values()}
    links = [link for link in _network(arena).links if link.source in nodes]
    await _shape(arena, "cut_control_plane", links, (CUT, CUT), draw)


async def slow_link(arena: Arena, draw: float) -> None:
    link, shape = choose(_network(arena).links, draw), {"delay_s": between(0.02, SLOW_S, draw)}
    await _shape(arena, "slow_link", [link], (shape, shape), draw)


async def lossy_link(arena: Arena, draw: float) -> None:
    link, shape = choose(_network(arena).links, draw), {"stall": between(0.02, LOSS, draw)}
    await _shape(arena, "lossy_link", [link], (shape, shape), draw)


async def _shape(
    arena: Arena, kind: str, links: Collection[LinkName], ways: tuple[dict[str, Any], dict[str, Any]], draw: float
) -> None:
    up, down = ways
    arrows = f"{'up ' * bool(up)}{'down' * bool(down)}".strip()
    with arena.log.lasting(kind, f"{', '.join(map(str, links))} {arrows}", hosts=_hosts(arena, kind, links)):
        async with _network(arena).shaped(links, up=up, down=down, reset=draw * 61 % 1.0 < 0.5):
            await asyncio.sleep(between(LEAST_S, MOST_S, draw))


def _hosts(arena: Arena, kind: str, links: Collection[LinkName]) -> list[str]:
    """Hosts that the cut sets apart. Where none is set apart from the others, it is the control plane that is away."""
    if kind in ("cut_service", "cut_temporal", "cut_control_plane"):
        return []
    ends = {link.source for link in links} | {link.target for link in links}
    return [name for name, child in arena.cluster.nodes.items() if child.name in ends]


def _network(arena: Arena) -> Network:
    assert arena.network is not None, "the plan cuts links, but the cluster was started without a network"
    return arena.network


VERBS: dict[str, Disruption] = {
    "cut_link": cut_link,
    "cut_host": cut_host,
    "cut_rack": cut_rack,
    "cut_service": cut_service,
    "cut_temporal": cut_temporal,
    "cut_control_plane": cut_control_plane,
    "slow_link": slow_link,
    "lossy_link": lossy_link,
}
