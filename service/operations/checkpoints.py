"""Checkpoints of jobs as the hosts report them, asking for one, and which hosts share a root."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import CheckpointRoot, problem_of_response
from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, InvalidRequest, NotFound, PlatformError
from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events
from gpu_platform.store.jobs import checkpoints, jobs
from gpu_platform.store.jobs.checkpoints import RootOfHost
from gpu_platform.store.models import CheckpointRecord
from service import node_workers
from service.context import ServiceContext

_LIST = TypeAdapter(list[CheckpointInfo])
_NUMBERS = TypeAdapter(dict[str, int])
_ANSWERS = TypeAdapter(dict[str, bool])
_NAMES = TypeAdapter(dict[str, str])
_PROBE = re.compile(r"[A-Za-z0-9._-]{1,100}")
_PATIENCE = httpx.Timeout(10.0, connect=2.0)
_HASHING = httpx.Timeout(600.0, connect=2.0)
_AT_ONCE = 32


async def list_checkpoints(context: ServiceContext, job_id: str, *, verify: bool = False) -> list[CheckpointInfo]:
    """The job's checkpoints, oldest first. ``verify``: read all their bytes. If no host answers: those last known.

    Raises :class:`NotFound`.
    """
    job = await run_in_threadpool(jobs.get_job, context.store, job_id)
    roots = await run_in_threadpool(checkpoints.read_roots, context.store)
    known = await run_in_threadpool(checkpoints.last_known, context.store, job_id)
    ran = await run_in_threadpool(_hosts_of, context.store, job) | {one.host for one in known}
    found: list[CheckpointInfo] = []
    silent: set[str] = set()
    for group in _groups(roots):
        if not ran & {one.host for one in group}:
            continue
        listed = await _ask_one(context, group, f"/checkpoints/{job.id}", verify)
        if listed is None:
            silent |= {one.host for one in group}
        else:
            names = [one.host for one in group if one.alive]
            found += [one.model_copy(update={"hosts": names}) for one in listed]
    found += [_remembered(job_id, one) for one in known if one.host in silent]
    return sorted(found, key=lambda one: (one.attempt, one.written_at, one.name))


async def ask_for_checkpoint(context: ServiceContext, job_id: str) -> int:
    """Ask a running job's program to save now. Returns how many processes got a signal, besides the request file.

    Raises :class:`NotFound`, :class:`IllegalTransition` and :class:`HostUnavailable`.
    """
    job = await run_in_threadpool(jobs.get_job, context.store, job_id)
    if job.state is not JobState.RUNNING or job.placement is None:
        when = "it has ended" if job.state.is_terminal else "ask again once it is RUNNING"
        raise IllegalTransition(
            subject=f"job {job.id}",
            current=job.state.value,
            wanted="asked for a checkpoint",
            allowed=[],
            message=f"job {job.id} is {job.state}, so there is no program to ask for a checkpoint: {when}",
        )
    host = job.placement.slices[0].host
    answer = await _call(context, host, "POST", f"/checkpoints/{job.id}/{job.attempt}")
    return node_workers.parsed(_NUMBERS, answer, host).get("signalled", 0)


async def check_roots(context: ServiceContext) -> list[CheckpointRoot]:
    """Test which hosts share a checkpoint root: one host of each group writes a file, and the others say whether
    they see it."""
    roots = await run_in_threadpool(checkpoints.read_roots, context.store)
    return [await _check_group(context, [one for one in group if one.alive]) for group in _groups(roots)]


def uses_checkpoints(spec: JobSpec) -> bool:
    """True if the job says that it resumes from checkpoints."""
    return bool(spec.checkpoints or spec.checkpoint.every_s or spec.checkpoint.resume_from)


def checkpoint_warnings(store: Store, spec: JobSpec) -> list[str]:
    """Warnings for a job that resumes from checkpoints."""
    if not uses_checkpoints(spec):
        return []
    groups = _groups([one for one in checkpoints.read_roots(store) if one.alive])
    if len(groups) < 2:
        return []
    shown = [", ".join(one.host for one in group[:4]) + (" …" if len(group) > 4 else "") for group in groups[:4]]
    more = f", and {len(groups) - 4} more" if len(groups) > 4 else ""
    return [
        "checkpoints are not shared by all hosts, so a retry elsewhere starts at zero: each of these groups has its "
        f"own root: {'; '.join(shown)}{more}. Let node.checkpoint_root be a file system that all hosts share"
    ]


def check_resume(store: Store, spec: JobSpec) -> None:
    """Raises :class:`InvalidRequest` unless the job that ``spec`` resumes from exists in its namespace."""
    asked = spec.checkpoint.resume_point
    if asked is None:
        return
    try:
        source = jobs.get_job(store, asked.job_id)
    except NotFound as error:
        raise InvalidRequest(f"the job is to resume from {asked}, but there is no job {asked.job_id!r}") from error
    if source.spec.namespace != spec.namespace:
        raise InvalidRequest(
            f"the job is to resume from {asked}, which is in another namespace than {spec.namespace!r}: submit it there"
        )
    if asked.attempt is not None and asked.attempt > source.attempt:
        raise InvalidRequest(f"the job is to resume from {asked}, but {source.id} had {source.attempt} attempts")


def _groups(roots: Sequence[RootOfHost]) -> list[list[RootOfHost]]:
    """Hosts that reported the same identity. A host that reported none is a group of its own."""
    groups: dict[str, list[RootOfHost]] = {}
    for one in roots:
        groups.setdefault(f"root {one.root}" if one.root is not None else f"host {one.host}", []).append(one)
    return list(groups.values())


def _hosts_of(store: Store, job: Job) -> set[str]:
    """All hosts on which any attempt was placed."""
    found = set(job.placement.hosts) if job.placement is not None else set[str]()
    seq = 0
    while page := events.read_events(store, seq, job_id=job.id):
        for event in page:
            if event.kind == "job.placed":
                found |= set(event.data.get("hosts", []))
        seq = page[-1].seq
    return found


def _remembered(job_id: str, one: CheckpointRecord) -> CheckpointInfo:
    return CheckpointInfo(
        job_id=job_id,
        attempt=one.attempt,
        name=one.name,
        written_at=one.written_at,
        problem=f"host {one.host} does not answer: this is the newest that it reported",
        path="",
        hosts=[one.host],
    )


async def _ask_one(
    context: ServiceContext, group: Sequence[RootOfHost], path: str, verify: bool
) -> list[CheckpointInfo] | None:
    """The first answer among hosts that share a root, asked one after the other. None: no host answers."""
    for one in [one for one in group if one.alive][:3]:
        try:
            answer = await _call(context, one.host, "GET", path, params={"hashes": "1"} if verify else {})
            return node_workers.parsed(_LIST, answer, one.host)
        except PlatformError:
            continue
    return None


async def _check_group(context: ServiceContext, group: Sequence[RootOfHost]) -> CheckpointRoot:
    names = [one.host for one in group]
    result = CheckpointRoot(root=group[0].root if group else None, hosts=names)
    if not names:
        return result
    try:
        probe = _probe_of(await _call(context, names[0], "POST", "/checkpoint-root"), names[0])
    except PlatformError as error:
        return result.model_copy(update={"problem": error.message})
    limit = asyncio.Semaphore(_AT_ONCE)

    async def sees(host: str) -> bool | None:
        try:
            async with limit:
                answer = await _call(context, host, "GET", f"/checkpoint-root/{probe}")
                return node_workers.parsed(_ANSWERS, answer, host).get("seen")
        except PlatformError:
            return None

    try:
        answers = dict(zip(names, await asyncio.gather(*map(sees, names)), strict=True))
    finally:
        await _call(context, names[0], "DELETE", f"/checkpoint-root/{probe}")
    blind = [name for name, seen in answers.items() if seen is False]
    problem = (
        f"they report one identity, but {', '.join(blind)} do not see what {names[0]} writes: the file "
        ".gpu-platform-root was copied (a cloned disk?); remove it there"
        if blind
        else None
    )
    silent = [name for name, seen in answers.items() if seen is None]
    return result.model_copy(update={"problem": problem, "silent": silent})


def _probe_of(answer: httpx.Response, host: str) -> str:
    """The name of the file that the host wrote. It becomes a part of the requests to other hosts."""
    probe = node_workers.parsed(_NAMES, answer, host).get("probe", "")
    if not _PROBE.fullmatch(probe) or set(probe) == {"."}:
        raise HostUnavailable(f"host {host} answered with something that nobody asked for", host=host)
    return probe


async def _call(context: ServiceContext, host: str, method: str, path: str, **options: Any) -> httpx.Response:
    patience = _HASHING if options.get("params") else _PATIENCE
    try:
        answer = await context.node_workers.ask(host, method, path, timeout=patience, **options)
    except httpx.TransportError as error:
        raise HostUnavailable(f"host {host} does not answer", host=host) from error
    if not answer.is_success:
        raise problem_of_response(answer.status_code, answer.headers, answer.content).error()
    return answer
