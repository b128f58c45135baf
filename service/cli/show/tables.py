"""Tables for a terminal: jobs, hosts, events, and the cluster at a glance."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.gpu import ClusterCounts, Gpu, GpuCount, Host
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, GpuState, HostState, JobState
from gpu_platform.domain.texts import counted, duration, moment, one_line, printable

_COLORS = {
    JobState.RUNNING: "green",
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.QUEUED: "cyan",
    ArrayState.RUNNING: "green",
    ArrayState.COMPLETED: "green",
    ArrayState.FAILED: "red",
    ArrayState.CANCELLED: "yellow",
    GpuState.AVAILABLE: "green",
    GpuState.DRAINING: "yellow",
    GpuState.DRAINED: "yellow",
    GpuState.DEGRADED: "yellow",
    GpuState.RESETTING: "yellow",
    GpuState.OFFLINE: "red",
    HostState.READY: "green",
    HostState.DRAINING: "yellow",
    HostState.DRAINED: "yellow",
    HostState.LOST: "red",
}

_UNAVAILABLE = "unavailable"
CERTIFICATE_WARNING_S = 4 * 3600.0
"""A certificate of a day is renewed when 8 hours are left. So the renewal has failed for hours."""


def jobs_table(jobs: Iterable[Job | Array], now: datetime | None = None) -> Table:
    """One row per job or array; the kind of work only if one of them has any. ``now``: for tests."""
    jobs = [*jobs]
    kinds = ["KIND"] if any(kind_text(job) for job in jobs) else []
    table = plain_table("JOB", "NAME", *kinds, "USER", "STATE", "GPUS", "ATTEMPT", "AGE", "WHERE / WHY")
    for job in jobs:
        table.add_row(
            job.id,
            job.spec.name,
            *[kind_text(job) or "-" for _ in kinds],
            job.spec.user,
            state(job.state),
            _gang(job.spec),
            "-" if isinstance(job, Array) else str(job.attempt or "-"),
            duration(((now or datetime.now(UTC)) - job.created_at).total_seconds()),
            _array_in_list(job) if isinstance(job, Array) else _where_or_why(job, now),
        )
    return table


def _array_in_list(array: Array) -> str:
    """Its elements, or for what it waits before any of them is under way."""
    if array.reason is not None and array.count(JobState.PENDING) == array.size:
        return one_line(array.reason.message)
    return array_summary(array)


def array_summary(array: Array) -> str:
    """``1,203/2,000 done, 64 running, 3 failed``."""
    parts = [f"{array.ended:,}/{array.size:,} done"]
    held = [state for state in JobState if state.holds_gpus]
    for states, word in ((held, "running"), ([JobState.FAILED], "failed"), ([JobState.CANCELLED], "cancelled")):
        if number := array.count(*states):
            parts.append(f"{number:,} {word}")
    return ", ".join(parts)


def kind_text(job: Job | Array) -> str | None:
    """The kind of work, and whether it was inferred. None: nobody knows it."""
    if job.spec.kind is not None:
        return job.spec.kind.value
    return None if isinstance(job, Array) or job.inferred_kind is None else f"{job.inferred_kind} (inferred)"


def hosts_table(hosts: Iterable[Host], now: datetime | None = None) -> Table:
    """One row per host. ``now``: for tests."""
    table = plain_table("HOST", "STATE", "MACHINE", "LEAF", "FREE", "GPUS", "LEASE", "NOTE")
    for host in hosts:
        table.add_row(
            host.name,
            state(host.state),
            host.machine + (" (simulated)" if host.simulated else ""),
            host.leaf or "-",
            str(host.gpus_free),
            str(host.gpus_total),
            f"{host.lease_remaining_s:.0f} s",
            "; ".join(note for note in (host.reason, _certificate_warning(host, now or datetime.now(UTC))) if note),
        )
    return table


def certificate(ends_at: datetime, now: datetime) -> str:
    """How long a certificate is still valid."""
    left_s = (ends_at - now).total_seconds()
    return f"ends in {duration(left_s)}" if left_s > 0 else f"ended {duration(-left_s)} ago"


def _certificate_warning(host: Host, now: datetime) -> str | None:
    if host.certificate_ends_at is None or (host.certificate_ends_at - now).total_seconds() > CERTIFICATE_WARNING_S:
        return None
    return f"its certificate {certificate(host.certificate_ends_at, now)}"


def cluster(
    counts: ClusterCounts, jobs: Sequence[Job | Array], limit: int, more: Sequence[RenderableType] = ()
) -> Group:
    """The cluster in a few lines. ``more``: tables of hosts and GPUs."""
    hosts: Counter[str] = Counter()
    for row in counts.hosts:
        hosts[str(row.state)] += row.count
    gpus: Counter[str] = Counter()
    for one in counts.gpus:
        gpus[_gpu_state(one)] += one.count
    name = [] if counts.name is None else [Text("cluster  ", style="bold").append(printable(counts.name), "not bold")]
    parts: list[RenderableType] = [
        *name,
        _counts("hosts", hosts),
        *lost_together(counts),
        _counts("GPUs ", gpus),
        _counts("jobs ", Counter(str(job.state) for job in jobs), more=len(jobs) > limit),
    ]
    for table in more:
        parts += ["", table]
    if jobs:
        parts += ["", jobs_table(jobs[:limit])]
    return Group(*parts)


def lost_together(counts: ClusterCounts) -> list[str]:
    """One line for each leaf, rack or power feed with which hosts were lost."""
    together = [row for row in counts.hosts if row.lost_with is not None]
    return [f"       {row.lost_with}: {row.count} still LOST" for row in sorted(together, key=str)]


def is_worth_showing(event: Event) -> bool:
    """False for a step that another event describes better."""
    return event.kind not in ("queue.added", "queue.removed", "gang.reserved")


def timeline(events: Sequence[Event]) -> Table:
    """The events, with milliseconds since the first one and since the one before."""
    table = plain_table("MS", "+MS", "ATTEMPT", "WHAT", "WHO")
    first = before = events[0].at
    for event in filter(is_worth_showing, events):
        table.add_row(
            f"{(event.at - first).total_seconds() * 1000:.0f}",
            f"{(event.at - before).total_seconds() * 1000:.0f}",
            str(event.attempt or ""),
            event_text(event),
            event.actor,
        )
        before = event.at
    return table


def event_text(event: Event) -> str:
    """One event in words."""
    data = event.data
    if event.kind in _TEXTS:
        return _TEXTS[event.kind](event)
    match event.kind:
        case "job.placed":
            why = data.get("why", "")
            return f"placed on {', '.join(data.get('hosts', []))} ({data.get('level')}): {why}"
        case "gpu.fault":
            text = data.get("message") or f"XID {data.get('xid')} on GPU {data.get('gpu_index')} of {event.host}"
            return f"{text} -> {str(data.get('action', '')).replace('_', ' ')}"
        case "job.fault" | "job.warning" | "job.resumed":
            return str(data.get("message", ""))
        case "gpu.state":
            later = ", and drained as soon as it is healed" if data.get("drained_later") else ""
            return f"GPU {event.gpu_uuid} on {event.host} is {data.get('state')}{later}" + _because(data.get("reason"))
        case "job.exec":
            command = one_line(shlex.join(data.get("command", [])))
            return f"exec beside rank {data.get('rank')} on {event.host}: {command}"
        case "job.exec_failed":
            return f"exec beside rank {data.get('rank')} on {event.host} failed" + _because(data.get("failure"))
        case "domain.lost":
            jobs = data.get("jobs", [])
            lost = f"{len(data['hosts'])} of {counted(data['of'], 'host')}, {counted(len(jobs), 'job')}"
            return f"{data['level']} {data['name']} lost: {lost}"
        case "job.cancelled" | "job.preempted":
            done = "killed" if data.get("verb") == "kill" else event.kind.removeprefix("job.")
            return done + _because(data.get("reason"))
    what = event.kind.removeprefix("job.").replace(".", " ").replace("_", " ")
    failure = data.get("failure")
    if isinstance(failure, dict):
        return what + _because(failure.get("message"))
    return what + _because(data.get("reason"))


def _host_text(event: Event) -> str:
    data = event.data
    later = f", {data['wanted']} was asked for" if "wanted" in data else ""
    return f"host {event.host} is {data.get('state', 'LOST')}{later}" + _because(data.get("reason"))


def _gang_text(event: Event) -> str:
    count, done = len(event.data.get("gpus", [])), event.kind.removeprefix("gang.")
    return f"{counted(count, 'GPU')} {done}" if count else done


def _promise_taken_back(event: Event) -> str:
    data, done = event.data, event.kind.removeprefix("job.promise_")
    later = "" if data.get("later") is None else f"; now promised: by {clock(data['later'])}"
    return f"promise of a start by {clock(data['promised'])} {done}: {data['reason']}{later}"


def clock(at: float) -> str:
    """Local time of Unix seconds, with the date unless it is today."""
    local = datetime.fromtimestamp(at)
    return f"{local:%H:%M:%S}" if local.date() == datetime.now().date() else f"{local:%Y-%m-%d %H:%M}"


def gpu_history(events: Sequence[Event]) -> Table:
    """What happened to a GPU, oldest first."""
    table = plain_table("WHEN", "WHAT", "JOB", "WHO")
    for event in events:
        when = f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}"
        table.add_row(when, event_text(event), event.job_id or "-", event.actor)
    return table


def state(value: JobState | ArrayState | GpuState | HostState) -> Text:
    """The state in its colour."""
    return Text(value.value, style=_COLORS.get(value, ""))


def gpu_state(gpu: Gpu) -> Text:
    """The state of a GPU, for tables that show the state of its host in a note."""
    return Text(_UNAVAILABLE, style="yellow") if is_unavailable(gpu) else state(gpu.state)


def _gang(spec: JobSpec) -> str:
    """The shape, e.g. ``2x8``. Without equal slices: how many GPUs in all."""
    shape = spec.gpus
    plain = not spec.groups and shape.total is None
    return f"{shape.hosts}x{shape.gpus_per_host}" if plain and shape.hosts > 1 else str(spec.gpu_count)


def _where_or_why(job: Job, now: datetime | None) -> str:
    if job.reason is not None:
        return job.reason.message
    if (begins := begin_text(job, now)) is not None:
        return f"begins {begins}"
    if (retry := retry_text(job, now)) is not None:
        return retry
    if job.failure is not None and job.state is JobState.FAILED:
        return job.failure.message
    if job.stopped_by is not None and job.state is JobState.CANCELLED:
        return str(job.stopped_by)
    if job.placement is not None and job.state.holds_gpus:
        return ", ".join(f"{one.host}[{format_indices(one.gpu_indices)}]" for one in job.placement.slices)
    return ""


def begin_text(job: Job, now: datetime | None = None) -> str | None:
    """``2026-12-01 08:00:00 UTC (in 3 h), as was asked for``; None: its time has come, or it never had to wait."""
    begin, now = job.spec.begin_at, now or datetime.now(UTC)
    if begin is None or begin <= now or job.state.is_terminal:
        return None
    left = duration((begin - now).total_seconds())
    return f"{moment(begin)} (in {left}), as was asked for"


def retry_text(job: Job, now: datetime | None = None) -> str | None:
    """``retry 3 of 5 in 8 s, after exit code 1``; None: no retry is due later."""
    left_s = 0.0 if job.retry_at is None else (job.retry_at - (now or datetime.now(UTC))).total_seconds()
    if left_s <= 0:
        return None
    why = ""
    if job.failure is not None:
        code = job.failure.exit_code
        why = f", after {job.failure.message if code is None else f'exit code {code}'}"
    return f"retry {job.user_retries} of {job.spec.max_retries} in {duration(math.ceil(left_s))}{why}"


def is_unavailable(gpu: Gpu | GpuCount) -> bool:
    """True if no job can get the GPU because its host takes no work (or is LOST), whatever its own state is."""
    away = gpu.host_state is HostState.LOST or gpu.state is GpuState.AVAILABLE
    return gpu.host_state is not HostState.READY and away


def _gpu_state(gpu: Gpu | GpuCount) -> str:
    return f"{_UNAVAILABLE} (host {gpu.host_state})" if is_unavailable(gpu) else str(gpu.state)


def _counts(what: str, counts: Counter[str], more: bool = False) -> Text:
    line = Text(f"{what}  ", style="bold")
    named = ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"
    return line.append(printable(named) + (" and more" if more else ""), style="not bold")


def format_indices(indices: Sequence[int]) -> str:
    """The numbers as people write them: ``0-3,6``."""
    parts: list[str] = []
    start = last = None
    for index in [*sorted(indices), None]:
        if start is not None and last is not None and index != last + 1:
            parts.append(str(start) if start == last else f"{start}-{last}")
            start = None
        start, last = index if start is None else start, index
    return ",".join(parts)


def _because(reason: Any) -> str:
    return f": {reason}" if reason else ""


_RIGHT = frozenset(
    [
        "PLACE",
        "PRIORITY",
        "SCORE",
        "MS",
        "+MS",
        "AGE",
        "FREE",
        "GPUS",
        "FAULTS",
        "RESETS",
        "TEMP",
        "POWER",
        "UTIL",
        "MEMORY",
    ]
)


def plain_table(*columns: str) -> Table:
    """A table without borders."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        right = column in _RIGHT
        # People copy ids, so they are never cut.
        whole = right or column in ("JOB", "HOST", "GPU", "UUID", "STATE", "MODEL", "FULL")
        table.add_column(column, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    return table


_TEXTS: dict[str, Callable[[Event], str]] = {
    "gang.reserved": _gang_text,
    "gang.released": _gang_text,
    "host.state": _host_text,
    "host.lost": _host_text,
    "job.promise_withdrawn": _promise_taken_back,
    "job.promise_broken": _promise_taken_back,
}
