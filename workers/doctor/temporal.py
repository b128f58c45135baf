"""Checks of Temporal: whether it answers, its version, the namespace and what it must have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.settings import Settings
from gpu_platform.temporal import search_attributes
from gpu_platform.temporal.namespace import describe_namespace, how_to_make, is_missing
from gpu_platform.temporal.tls import tls_of
from workers.doctor.clocks import judge
from workers.doctor.results import Part, Result
from workers.doctor.roles import CLIENT, CONTROL_PLANE, Roles
from workers.doctor.temporal_clock import temporal_clock
from workers.doctor.versioning import versioning

PATIENCE_S = 10.0
LEAST_RETENTION = timedelta(hours=24)
"""What Temporal has forgotten, a restored database cannot be told (docs/how-to/backup.md)."""
_THROUGH_GATEWAY = "Temporal is reached through the node gateway, which does not let hosts ask that"
_REFUSED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)


def checks(settings: Settings, roles: Roles) -> Iterator[Result]:
    """The checks of this part."""
    part = Part("temporal")
    if CLIENT in roles.names:
        yield part.skipped("all", "clients talk to the service only")
        return
    yield from part.guarded(asyncio.run(_all(part, settings, roles)))


async def _all(part: Part, settings: Settings, roles: Roles) -> list[Result]:
    return [result async for result in _checks(part, settings, roles)]


async def _checks(part: Part, settings: Settings, roles: Roles) -> AsyncIterator[Result]:
    temporal = settings.temporal
    advice = "start Temporal, or set temporal.address and temporal.tls_*; from a host: is the node gateway up?"
    try:
        async with asyncio.timeout(PATIENCE_S):
            client = await Client.connect(temporal.address, namespace=temporal.namespace, tls=tls_of(temporal))
    except (RuntimeError, TimeoutError) as error:
        yield part.failed("reachable", f"no answer at {temporal.address}: {error or 'too late'}", advice)
        return
    yield part.ok("reachable", temporal.address)
    yield await _version(part, client)
    try:
        described = await describe_namespace(client)
    except RPCError as error:
        if is_missing(error):
            found, _, command = how_to_make(temporal.address, temporal.namespace).partition(". ")
            yield part.failed("namespace", found, command)
        else:
            yield part.failed("namespace", f"{error.status.name}: {error.message}", advice)
        return
    yield part.ok("namespace", temporal.namespace)
    yield await _clock(part, client)
    yield _retention(part, settings, described.config.workflow_execution_retention_ttl.ToTimedelta())
    yield await _search_attributes(part, settings, client)
    if CONTROL_PLANE in roles.names:
        for result in await versioning(part, settings, client):
            yield result


async def _version(part: Part, client: Client) -> Result:
    try:
        found = await client.workflow_service.get_cluster_info(GetClusterInfoRequest(), timeout=timedelta(seconds=5))
    except RPCError as error:
        if error.status in _REFUSED:
            return part.skipped("version", _THROUGH_GATEWAY)
        return part.failed("version", f"{error.status.name}: {error.message}", "look at Temporal's log")
    return part.ok("version", found.server_version)


async def _clock(part: Part, client: Client) -> Result:
    try:
        return judge(part, await temporal_clock(client), "Temporal's")
    except RPCError as error:
        return part.skipped("clock", _THROUGH_GATEWAY if error.status in _REFUSED else error.message)
    except TimeoutError:
        return part.skipped("clock", "Temporal does not tell when it was polled")


def _retention(part: Part, settings: Settings, kept: timedelta) -> Result:
    temporal = settings.temporal
    found = f"workflows that ended are kept for {kept.total_seconds() / 3600:g} h"
    if kept < LEAST_RETENTION:
        command = f"--address {temporal.address} --namespace {temporal.namespace} --retention 72h"
        return part.warning("retention", found, f"`temporal operator namespace update {command}`")
    return part.ok("retention", found)


async def _search_attributes(part: Part, settings: Settings, client: Client) -> Result:
    name = "search attributes"
    try:
        missing = await search_attributes.find_missing(client)
    except RPCError as error:
        if error.status in _REFUSED:
            return part.skipped(name, _THROUGH_GATEWAY)
        return part.failed(name, f"{error.status.name}: {error.message}", "look at Temporal's log")
    if not missing:
        return part.ok(name, ", ".join(key.name for key in search_attributes.ALL))
    temporal = settings.temporal
    options = " ".join(f"--name {name} --type {_type(kind)}" for name, kind in missing.items())
    where = f"--address {temporal.address} --namespace {temporal.namespace}"
    return part.warning(
        name,
        f"the namespace lacks {', '.join(missing)}",
        f"the service adds them with the first job; if Temporal forbids it: `temporal operator search-attribute create "
        f"{where} {options}`",
    )


def _type(kind: IndexedValueType.ValueType) -> str:
    return "".join(word.capitalize() for word in IndexedValueType.Name(kind).split("_")[3:])
