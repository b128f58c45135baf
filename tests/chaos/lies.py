"""A host that lies: it reports under its own name what belongs to others."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid

import httpx

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound, PlatformError
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.identity.node_tokens import NODE_HEADER, NodeTokens
from gpu_platform.store.hosts import gpus
from gpu_platform.store.reservations import allocations
from tests.chaos.arena import Arena, Disruption, between
from tests.support.store_cluster import inventory

LIAR = "liar"
LEAST_S, MOST_S = 2.0, 12.0
REPORT_S = 0.5


async def lying_host(arena: Arena, draw: float) -> None:
    """It claims to run the attempts of others, to be unwell for their GPUs, and to own one of them."""
    if arena.is_under_way(LIAR):
        return
    async with arena.lock(LIAR):
        with arena.log.lasting("lying_host", LIAR, hosts=[LIAR]):
            ends_at = time.monotonic() + between(LEAST_S, MOST_S, draw)
            try:
                async with httpx.AsyncClient(timeout=5.0) as http:
                    while time.monotonic() < ends_at:
                        await _report(arena, http, draw)
                        await asyncio.sleep(REPORT_S)
            finally:
                await _removed(arena)


async def _report(arena: Arena, http: httpx.AsyncClient, draw: float) -> None:
    held = await asyncio.to_thread(allocations.held_attempts, arena.audit.store)
    report = lie(held, [gpu.info.uuid for gpu in await asyncio.to_thread(gpus.list_gpus, arena.audit.store)], draw)
    tokens = NodeTokens.open(arena.cluster.config.state_dir / "identity")
    with contextlib.suppress(httpx.HTTPError):
        answer = await http.post(
            f"{arena.cluster.api_url}/v1/hosts/{LIAR}/report",
            content=report.model_dump_json(exclude_defaults=True),
            headers={"content-type": "application/json", NODE_HEADER: f"{LIAR}:{tokens.of(LIAR)}"},
        )
        assert answer.status_code not in (401, 403, 422), f"nobody hears the lie: {answer.text}"


def lie(attempts: list[AttemptKey], uuids: list[str], draw: float) -> HostReport:
    own = inventory(LIAR, 1)
    foreign = [one for one in uuids if one not in {gpu.uuid for gpu in own.gpus}]
    if foreign and draw < 0.5:
        taken = own.gpus[0].model_copy(update={"uuid": foreign[int(draw * 997) % len(foreign)]})
        own = own.model_copy(update={"gpus": [taken]})
    return HostReport(
        name=LIAR,
        inventory=own,
        session=uuid.uuid4().hex,
        address="127.0.0.1",
        url="http://127.0.0.1:9",
        attempts=attempts,
        degraded=dict.fromkeys([*foreign, *(gpu.uuid for gpu in own.gpus)], "it is broken, says a liar"),
        seq=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000_000),
    )


async def _removed(arena: Arena) -> None:
    """By an operator who has seen it, as soon as its lease is over. He says that it is dead: the leader waits longer
    where it hears too few hosts, or for ten minutes where the database was restored to an older point."""
    for _ in range(600):
        try:
            with contextlib.suppress(NotFound):
                await arena.client.declare_lost(LIAR, reason="a liar")
                await arena.client.remove_host(LIAR)
        except PlatformError:  # its lease lasts
            await asyncio.sleep(1.0)
        else:
            return


VERBS: dict[str, Disruption] = {"lying_host": lying_host}
