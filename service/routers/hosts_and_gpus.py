"""Hosts and GPUs: look at them, take them out of service, put them back; and the node workers' reports."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Page, ReasonBody
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.gpu import ClusterCounts, Gpu, GpuHealth, Host
from gpu_platform.domain.hosts.lease import Heartbeat, HostReport, LeaseAnswer
from gpu_platform.domain.hosts.protocol import check_host
from gpu_platform.domain.states import GpuState
from gpu_platform.identity import names
from gpu_platform.store import events
from gpu_platform.store.hosts import gpus, hosts, reports
from service.access.masking import Mask
from service.context import AccessDep, ActorDep, ServiceContextDep, now
from service.http.machines import peer_of
from service.http.paging import Cursor, offset_of, page_from
from service.operations import hosts_and_gpus, measurements, windows
from service.operations import reports as incoming
from service.routers.jobs import ReasonBodyDep

router = APIRouter(prefix="/v1")


class HeartbeatRoute(APIRoute):
    """Reads a heartbeat without FastAPI's dependencies: they take a third of a service that has a thousand hosts."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See ``APIRoute``."""

        async def handle(request: Request) -> Response:
            try:
                beat = Heartbeat.model_validate_json(await request.body())
            except ValidationError as error:
                found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
                raise RequestValidationError(found) from error
            return await renew_lease(request.path_params["name"], beat, request.app.state.context, request)

        return handle


_heartbeats = APIRouter(route_class=HeartbeatRoute)
node_reports = APIRouter(prefix="/v1")
"""A router of their own, because no rate limit of people may hold them up."""

HostName = Annotated[str, Path(description="Host name", examples=["dgx-a"])]
GpuId = Annotated[str, Path(description="uuid, the beginning of one, or host:index", examples=["dgx-a:3"])]
Limit = Annotated[int, Query(ge=1, le=10_000)]


@router.get("/hosts", tags=["hosts"])
def list_hosts(context: ServiceContextDep, access: AccessDep, cursor: Cursor = None, limit: Limit = 1000) -> Page[Host]:
    """All hosts by name."""
    found = hosts.list_hosts(context.store, now(), offset=offset_of(cursor), limit=limit + 1)
    return page_from(Mask(context.store, access).hosts(windows.with_windows(context, found)), cursor, limit)


@router.get("/cluster", tags=["hosts"])
def count_cluster(context: ServiceContextDep) -> ClusterCounts:
    """The cluster at a glance, whatever its size: its name, and how many hosts and GPUs are in each state."""
    name = context.settings.cluster.name
    with context.store.read_consistently() as session:
        return ClusterCounts(
            name=name,
            hosts=hosts.count_hosts(session),
            gpus=gpus.count_shown(session),
            trace_url=context.settings.tracing.trace_url,
        )


@router.get("/hosts/{name}", tags=["hosts"])
def get_host(name: HostName, context: ServiceContextDep, access: AccessDep) -> Host:
    """One host: its state, lease, GPUs and software."""
    found = windows.with_windows(context, [hosts.get_host(context.store, name, now())])
    return Mask(context.store, access).hosts(found)[0]


@router.post("/hosts/{name}/drain", tags=["hosts"])
async def drain_host(
    name: HostName,
    context: ServiceContextDep,
    actor: ActorDep,
    why: ReasonBodyDep = None,
    force: Annotated[bool, Query(description="Preempt what runs there")] = False,
) -> Host:
    """Cordon the host: no new work, and what runs there goes on. It is DRAINED when nothing is left."""
    return await hosts_and_gpus.drain_host(context, name, actor, _reason(why), force)


@router.post("/hosts/{name}/offline", tags=["hosts"])
async def take_host_offline(
    name: HostName,
    context: ServiceContextDep,
    actor: ActorDep,
    why: ReasonBodyDep = None,
    force: Annotated[bool, Query(description="Kill what runs there")] = False,
) -> Host:
    """Cordon the host at once. A 409 while jobs run there, unless `force` kills them."""
    return await hosts_and_gpus.take_host_offline(context, name, actor, _reason(why), force)


@router.post("/hosts/{name}/online", tags=["hosts"])
def put_host_online(name: HostName, context: ServiceContextDep, actor: ActorDep, why: ReasonBodyDep = None) -> Host:
    """Put the host back into service. A LOST host is READY as soon as its node worker reports."""
    return hosts_and_gpus.put_host_online(context, name, actor, _reason(why))


@router.post("/hosts/{name}/declare-lost", tags=["hosts"])
async def declare_host_lost(
    name: HostName,
    context: ServiceContextDep,
    actor: ActorDep,
    why: ReasonBodyDep = None,
    force: Annotated[bool, Query(description="Also if the host still reports")] = False,
) -> Host:
    """Declare the host dead: what ran there starts elsewhere now. If the host is only cut off, its ranks may run
    beside the new ones until it is reached. A 409 while it reports, unless `force`."""
    return await run_in_threadpool(hosts_and_gpus.declare_host_lost, context, name, actor, _reason(why), force=force)


@router.delete("/hosts/{name}", tags=["hosts"], status_code=204)
async def remove_host(name: HostName, context: ServiceContextDep, actor: ActorDep) -> None:
    """Forget a host that is LOST or DRAINED and holds nothing; a 409 otherwise. Usage and events stay."""
    await hosts_and_gpus.remove_host(context, name, actor)


@node_reports.post("/hosts/{name}/report", tags=["node workers"], response_model=LeaseAnswer)
async def report_host(name: HostName, report: HostReport, context: ServiceContextDep, request: Request) -> Response:
    """A node worker registers its host or renews its lease; the answer names attempts it must kill.

    Only the node worker of this host may: it shows the certificate of its name, or its node token where there is no
    TLS.
    """
    tls = context.tls is not None
    if report.name != name:
        raise InvalidRequest(f"the report is of host {report.name!r}, but was sent for {name!r}")
    source = None if request.client is None else request.client.host

    def write() -> bytes:
        context.revoked.check(f"{names.NODE}/{name}", peer_of(request.scope))
        check_host(name, report.protocol)
        incoming.check_url_of_host(context.store, report, source, tls=tls)
        incoming.check_address(context.store, report, source)
        answer = reports.report_host(context.store, report, ttl_s=context.settings.lease_ttl_s, now=now())
        cluster = context.settings.cluster.name
        answer = answer.model_copy(update={"revoked": context.revoked.listed(), "cluster": cluster})
        return answer.model_dump_json(exclude_defaults=True).encode()  # here: a list of a thousand members takes 1 ms

    async with context.report_turns.turn(name):
        return Response(await to_thread.run_sync(write, limiter=context.report_threads), media_type="application/json")


@_heartbeats.post("/hosts/{name}/heartbeat", tags=["node workers"])
async def renew_lease(name: HostName, beat: Heartbeat, context: ServiceContextDep, request: Request) -> Response:
    """A node worker renews its host's lease. A 409 `full_report_needed` asks it for a report with everything."""
    if beat.name != name:
        raise InvalidRequest(f"the heartbeat is of host {beat.name!r}, but was sent for {name!r}")
    answer = await context.heartbeats.renew(beat, peer_of(request.scope))
    return Response(answer.model_dump_json(exclude_defaults=True), media_type="application/json")


node_reports.include_router(_heartbeats)


@router.get("/gpus", tags=["GPUs"])
def list_gpus(
    context: ServiceContextDep,
    access: AccessDep,
    host: Annotated[str | None, Query(description="Only of this host")] = None,
    state: Annotated[list[GpuState] | None, Query(description="Only these states; may be repeated")] = None,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> Page[Gpu]:
    """GPUs by host and index: state, holder, last telemetry. Jobs of other namespaces have no name here."""
    start = offset_of(cursor)
    found = gpus.list_gpus(context.store, host=host, states=state, offset=start, limit=limit + 1)
    return page_from(Mask(context.store, access).gpus(found), cursor, limit)


@router.get("/gpus/{gpu_id}", tags=["GPUs"])
def get_gpu(gpu_id: GpuId, context: ServiceContextDep, access: AccessDep) -> Gpu:
    """One GPU: facts, state, holders. Of jobs of other namespaces it says only that there are some."""
    return Mask(context.store, access).gpus([gpus.get_gpu(context.store, gpu_id)])[0]


@router.get("/gpus/{gpu_id}/health", tags=["GPUs"])
async def get_gpu_health(gpu_id: GpuId, context: ServiceContextDep) -> GpuHealth:
    """What its host measures now: ECC, remapped rows, NVLink, PCIe, throttling, XIDs; 503 if the host is away."""
    return await measurements.gpu_health(context, gpu_id)


@router.get("/gpus/{gpu_id}/events", tags=["GPUs"])
def get_gpu_events(
    gpu_id: GpuId, context: ServiceContextDep, limit: Annotated[int, Query(ge=1, le=1000)] = 50
) -> Page[Event]:
    """The newest events of one GPU, oldest first: faults, resets, changes of its state."""
    uuid = gpus.get_gpu(context.store, gpu_id).info.uuid
    return Page(items=events.read_gpu_events(context.store, uuid, limit))


@router.post("/gpus/{gpu_id}/drain", tags=["GPUs"])
async def drain_gpu(
    gpu_id: GpuId,
    context: ServiceContextDep,
    actor: ActorDep,
    why: ReasonBodyDep = None,
    force: Annotated[bool, Query(description="Preempt what runs on it")] = False,
) -> Gpu:
    """Cordon the GPU: no new work, what runs goes on. DRAINED when nobody holds it. Faults are repaired as usual."""
    return await hosts_and_gpus.drain_gpu(context, gpu_id, actor, _reason(why), force)


@router.post("/gpus/{gpu_id}/offline", tags=["GPUs"])
async def take_gpu_offline(
    gpu_id: GpuId,
    context: ServiceContextDep,
    actor: ActorDep,
    why: ReasonBodyDep = None,
    force: Annotated[bool, Query(description="Kill what runs on it")] = False,
) -> Gpu:
    """Take the GPU out of service until an operator puts it back. A 409 while jobs run on it, unless `force` kills
    them."""
    return await hosts_and_gpus.take_gpu_offline(context, gpu_id, actor, _reason(why), force)


@router.post("/gpus/{gpu_id}/online", tags=["GPUs"])
async def put_gpu_online(gpu_id: GpuId, context: ServiceContextDep, actor: ActorDep, why: ReasonBodyDep = None) -> Gpu:
    """Put a GPU that is DRAINING, DRAINED, DEGRADED or OFFLINE back into service.

    It is DEGRADED as long as its own host calls it unfit. This ends its remediation, and a quarantine.
    """
    return await hosts_and_gpus.put_gpu_online(context, gpu_id, actor, _reason(why))


def _reason(why: ReasonBody | None) -> str:
    return why.reason if why else ""
