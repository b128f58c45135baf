"""Tables for a terminal: hosts, events, and the cluster at a glance."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpu_platform.cli.placeholder import shown_command
from gpu_platform.cli.show import job_rows, times
from gpu_platform.cli.show.listing import Listing, Row
from gpu_platform.cli.show.plain_text import COLOURS, RIGHT, Coloured
from gpu_platform.cli.terminal import safe
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.domain.texts import counted, one_line, printable

if TYPE_CHECKING:
    from gpu_platform.domain.events import Event
    from gpu_platform.domain.hosts.gpu import ClusterCounts, Gpu, GpuCount

_UNAVAILABLE = "unavailable"


def cluster(counts: ClusterCounts, jobs: Sequence[Row], limit: int, more: Sequence[RenderableType] = ()) -> Group:
    """The cluster in a few lines. ``more``: tables of hosts and GPUs."""
    hosts: Counter[str] = Counter()
    for row in counts.hosts:
        hosts[str(row.state)] += row.count
    gpus: Counter[str] = Counter()
    for one in counts.gpus:
        gpus[_gpu_state(one)] += one.count
    parts: list[RenderableType] = [
        Text("cluster  ", style="bold").append(printable(counts.name), "not bold"),
        _counts("hosts", hosts),
        *lost_together(counts),
        _counts("GPUs ", gpus),
        _counts("jobs ", Counter(job["state"] for job in jobs), more=len(jobs) > limit),
    ]
    for table in more:
        parts += ["", table]
    if jobs:
        parts += ["", Listing(job_rows.COLUMNS).table(jobs[:limit])]
    return Group(*parts)


def lost_together(counts: ClusterCounts) -> list[str]:
    """One line for each leaf, rack or power feed with which hosts were lost."""
    together = [row for row in counts.hosts if row.lost_with is not None]
    return [f"       {row.lost_with}: {row.count} still LOST" for row in sorted(together, key=str)]


def is_worth_showing(event: Event) -> bool:
    """False for a step that another event describes better."""
    return event.kind not in ("queue.added", "queue.removed", "gang.reserved")


def timeline(events: Sequence[Event]) -> Table:
    """The events, when they happened, and with milliseconds since the first one and since the one before."""
    table = plain_table(times.headed("WHEN"), "MS", "+MS", "ATTEMPT", "WHAT", "WHO")
    first = before = events[0].at
    for event in filter(is_worth_showing, events):
        table.add_row(
            times.without_zone(event.at),
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


def _exec_text(event: Event) -> str:
    data = event.data
    command = one_line(shlex.join(shown_command(data.get("command", []))))
    return f"exec beside rank {data.get('rank')} on {event.host}: {command}"


def _forward_text(event: Event) -> str:
    failed = " failed" + _because(event.data.get("failure")) if "failure" in event.data else ""
    return f"forward to port {event.data.get('port')} of rank {event.data.get('rank')} on {event.host}{failed}"


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
    table = plain_table(times.headed("WHEN"), "WHAT", "JOB", "WHO")
    for event in events:
        table.add_row(times.without_zone(event.at), event_text(event), event.job_id or "-", event.actor)
    return table


def state(value: str) -> Text:
    """The state in its colour. ``value``: also one that only a newer release knows."""
    return safe(str(value), style=COLOURS.get(value, ""))


def coloured(text: str) -> str | Text:
    """The text of a cell as rich takes it."""
    return safe(text, style=text.colour) if isinstance(text, Coloured) else text


def gpu_state(gpu: Gpu) -> Text:
    """The state of a GPU, for tables that show the state of its host in a note."""
    return Text(_UNAVAILABLE, style="yellow") if is_unavailable(gpu) else state(gpu.state)


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


def _because(reason: Any) -> str:
    return f": {reason}" if reason else ""


def plain_table(*columns: str) -> Table:
    """A table without borders."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        right = column in RIGHT
        # People copy ids, so they are never cut.
        whole = right or column in ("JOB", "HOST", "GPU", "UUID", "STATE", "MODEL", "FULL")
        table.add_column(column, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    return table


def _not_told(event: Event) -> str:
    return f"target {event.data.get('target')} was not told" + _because(event.data.get("reason"))


_TEXTS: dict[str, Callable[[Event], str]] = {
    "job.exec": _exec_text,
    "job.exec_failed": lambda event: (
        f"exec beside rank {event.data.get('rank')} on {event.host} failed" + _because(event.data.get("failure"))
    ),
    "job.forward": _forward_text,
    "job.forward_failed": _forward_text,
    "job.notification_failed": _not_told,
    "gang.reserved": _gang_text,
    "gang.released": _gang_text,
    "host.state": _host_text,
    "host.lost": _host_text,
    "job.promise_withdrawn": _promise_taken_back,
    "job.promise_broken": _promise_taken_back,
}
