"""How far the clocks of database and hosts are from the service's. Certificates and tokens need them to agree."""

from __future__ import annotations

import asyncio
import time

import httpx
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Clock
from gpu_platform.clock_difference import compare, compare_remote
from gpu_platform.domain.errors import HostUnavailable, PlatformError
from gpu_platform.domain.states import HostState
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from service import node_workers
from service.context import ServiceContext, now

_TIMES = TypeAdapter(dict[str, float])
_PATIENCE = httpx.Timeout(5.0, connect=2.0)
_AT_ONCE = 32


async def compare_clocks(context: ServiceContext) -> list[Clock]:
    """The database's, if it may be on another machine, and those of all hosts that are not LOST."""
    found = await run_in_threadpool(hosts.list_hosts, context.store, now())
    limit = asyncio.Semaphore(_AT_ONCE)

    async def of_host(name: str) -> Clock:
        async with limit:
            return await _of_host(context, name)

    asked = [of_host(one.name) for one in found if one.state is not HostState.LOST]
    return [*await run_in_threadpool(_of_database, context.store), *await asyncio.gather(*asked)]


def _of_database(store: Store) -> list[Clock]:
    if store.clock() is None:
        return []
    difference = compare(lambda: store.clock() or time.time())
    return [Clock(kind="database", ahead_s=difference.ahead_s, uncertain_s=difference.uncertain_s)]


async def _of_host(context: ServiceContext, host: str) -> Clock:
    async def read() -> float:
        try:
            answer = await context.node_workers.ask(host, "GET", "/clock", timeout=_PATIENCE)
        except httpx.TransportError as error:
            raise HostUnavailable(f"host {host} does not answer", host=host) from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise HostUnavailable(f"the node worker of {host} is of a release that does not say its time", host=host)
        return node_workers.parsed(_TIMES, answer, host)["now"]

    try:
        difference = await compare_remote(read)
    except (PlatformError, KeyError) as error:
        return Clock(kind="host", name=host, problem=getattr(error, "message", "it answers something else"))
    return Clock(kind="host", name=host, ahead_s=difference.ahead_s, uncertain_s=difference.uncertain_s)
