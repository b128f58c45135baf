"""Each kind of outage of :mod:`tests.chaos.outage`, and what people must be told during it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from gpu_platform.client.wire import Health
from tests.chaos.outage import Outage, dead, frozen, is_ready, outage, restart_one_by_one
from tests.support.waiting import eventually
from workers.local.cluster import LocalCluster

TOLD_WITHIN_S = 45.0


async def one_stands_still(found: Outage, seconds: float) -> None:
    """Hosts and clients go over to the other service, so nothing is held back, and it says that all is well."""
    first, second = found.cluster.services
    async with frozen([first]):
        await submitting(found, asyncio.sleep(seconds))
        async with found.client_of_the_second() as client:
            well = Health(version=version("gpu-platform"), warnings=[])

            async def is_well() -> bool:
                return await client.ready() == well

            await eventually(is_well, "the other service to say that all is well")
    assert len(found.submitted) > seconds / 4
    assert second.restarts == 0
    assert found.happened("hosts.verdict_held") == []


async def the_known_one(found: Outage, seconds: float) -> None:
    """Hosts do not know the other service. It says how many of them report through Temporal."""
    hosts = sorted(found.cluster.nodes)
    async with frozen(found.cluster.services[:1]), found.client_of_the_second() as client:
        ends_at = time.monotonic() + seconds

        async def is_told() -> bool:
            said = f"{len(hosts)} hosts report through Temporal ({', '.join(hosts)}), because no service answers them"
            return any(said in warning for warning in (await client.ready()).warnings)

        await eventually(is_told, "/readyz to say it", within_s=TOLD_WITHIN_S)
        await submitting(found, asyncio.sleep(ends_at - time.monotonic()))
        assert await is_told()
        assert await all_by_temporal(found)
    assert {event.host for event in found.happened("host.reports_through_temporal")} == set(hosts)
    await eventually(lambda: no_warnings(found), "/readyz to say nothing any more", within_s=TOLD_WITHIN_S)
    assert {event.host for event in found.happened("host.reports_to_a_service")} == set(hosts)


async def both_services(found: Outage, seconds: float) -> None:
    """Hosts report through Temporal, and the leader says so; afterwards the events say since when and until when."""
    hosts = sorted(found.cluster.nodes)
    async with dead(found.cluster.services):
        ends_at = time.monotonic() + seconds
        await eventually(lambda: all_by_temporal(found), "the metric to say it", within_s=TOLD_WITHIN_S)
        await asyncio.sleep(ends_at - time.monotonic())
        assert await all_by_temporal(found)
        assert found.last_ways() == dict.fromkeys(hosts, "host.reports_through_temporal")
    await eventually(lambda: all_services_ready(found.cluster), "the services to be back")
    await eventually(
        lambda: found.last_ways() == dict.fromkeys(hosts, "host.reports_to_a_service"),
        "the hosts to report to services again",
        within_s=TOLD_WITHIN_S,
    )
    assert found.happened("hosts.verdict_held") == []


async def control_plane(found: Outage, seconds: float) -> None:
    """Service, control worker, schedulers and Temporal."""
    hosts = {child.name for child in found.cluster.nodes.values()}
    async with dead([child for child in found.cluster.children if child.name not in hosts]):
        await asyncio.sleep(seconds)


async def each_in_turn(found: Outage, seconds: float) -> None:
    """A rolling restart of services, control workers and schedulers, again and again."""
    cluster = found.cluster

    async def again_and_again() -> None:
        ends_at = time.monotonic() + seconds
        while True:
            await restart_one_by_one(cluster.services, lambda: all_services_ready(cluster))
            await restart_one_by_one([*cluster.controls, *cluster.schedulers], lambda: all_services_ready(cluster))
            if time.monotonic() > ends_at:
                return

    await submitting(found, again_and_again())
    assert found.submitted
    assert found.happened("hosts.verdict_held") == []


Happens = Callable[[Outage, float], Awaitable[None]]
OUTAGES: dict[str, tuple[Happens, int]] = {
    "the only service": (both_services, 1),
    "one of two services stands still": (one_stands_still, 2),
    "the one of two services that hosts know": (the_known_one, 2),
    "both services": (both_services, 2),
    "control plane": (control_plane, 1),
    "each in turn": (each_in_turn, 2),
}
"""What is away -> what happens, and how many services, control workers and schedulers there are."""


async def go_through(
    tmp_path: Path, away: str, seconds: float, *, hosts: int, running: int, waiting: int, lease_s: float = 10.0
) -> str:
    """Make the outage, and check that nothing is harmed. Returns the figures."""
    happens, each = OUTAGES[away]
    settings = {"GPU_PLATFORM_LEASE_TTL_S": str(lease_s)}
    config = {"services": each, "control_workers": each, "settings": settings}
    async with outage(tmp_path, hosts, know_all=happens is not the_known_one, **config) as found:
        await found.begin(running, waiting)
        began = time.monotonic()
        await happens(found, seconds)
        over = time.monotonic()
        gap_s = await found.check_unharmed()
        back_s = time.monotonic() - over
        assert found.refused == []
        await found.check_the_rest_ends()
        return (
            f"{away}, {over - began:.0f} s: 0 of {running} restarted, 0 of {hosts} LOST, back in {back_s:.1f} s, "
            f"longest silence of a job {gap_s:.1f} s, {len(found.submitted)} submitted meanwhile, 0 refused"
        )


async def submitting(found: Outage, meanwhile: Awaitable[None]) -> None:
    """While one service answers, every submission succeeds."""
    submits = asyncio.create_task(found.submit_steadily())
    try:
        await meanwhile
    finally:
        submits.cancel()
        with suppress(asyncio.CancelledError):
            await submits


async def all_by_temporal(found: Outage) -> bool:
    return await found.hosts_by_temporal() == len(found.cluster.nodes)


async def no_warnings(found: Outage) -> bool:
    return (await found.client.ready()).warnings == []


async def all_services_ready(cluster: LocalCluster) -> bool:
    return all([await is_ready(url) for url in cluster.api_urls])
