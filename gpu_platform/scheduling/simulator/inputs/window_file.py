"""Windows of a simulation, from a file: the fields of a window as the API takes them.

::

    windows:
      - {name: fans, maintenance: true, hosts: ["dgx-h100-000[0-3]"], start_at: 2h, duration_s: 7200}
      - {name: course, gpu_count: 16, start_at: 2026-12-01T14:00Z, duration_s: 7200, namespaces: [teaching]}

A time is a date, or how long after the beginning of the simulation: ``2h``, or a number of seconds. Dates are for live
clusters, whose snapshot has one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_platform.domain.documents import wrong_fields
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.domain.placing.window import WindowPlace, WindowRow, conflict
from gpu_platform.domain.placing.window_choice import choose
from gpu_platform.domain.states import HostState
from gpu_platform.domain.windows import WindowRequest

_TIMES = ("start_at", "end_at", "until_at")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class WindowFile(BaseModel):
    """The contents of a file of windows: see the top of this module."""

    model_config = ConfigDict(extra="forbid")

    windows: list[WindowRequest] = Field(min_length=1)


def read_windows(
    name: str,
    content: Mapping[str, Any],
    hosts: Sequence[HostRow],
    state: ClusterState | None = None,
    margin_s: float = 60.0,
) -> list[WindowRow]:
    """Return the windows of a file called ``name``, with Unix times; without ``state`` in seconds.

    ``state``: the live cluster at second 0, with windows of its own. ``margin_s``: ``Policy.window_margin_s``. Raises
    InvalidRequest, as a service would: two windows keep the same, or jobs are in the way that may not be stopped.
    """
    at = 0.0 if state is None else state.at
    try:
        requests = WindowFile.model_validate(_with_dates(content, at, has_date=state is not None)).windows
    except ValidationError as error:
        raise InvalidRequest(f"{name} has no windows that can be kept: {wrong_fields(error)}") from error
    found: list[WindowRow] = []
    there = [] if state is None else state.windows
    for request in requests:
        found.append(_window(name, request, hosts, [*there, *found], at, state, margin_s))
    return found


def _with_dates(content: Mapping[str, Any], at: float, *, has_date: bool) -> dict[str, Any]:
    """Replace times since the beginning by dates."""
    windows = content.get("windows")
    if not isinstance(windows, list):
        return dict(content)
    changed = [
        {key: _date(key, value, at, has_date) if key in _TIMES else value for key, value in one.items()}
        if isinstance(one, dict)
        else one
        for one in windows
    ]
    return {**content, "windows": changed}


def _date(key: str, value: Any, at: float, has_date: bool) -> Any:
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and value[-1:] in _UNITS and value[:-1].strip("+").replace(".", "", 1).isdigit():
        seconds = float(value[:-1].strip("+")) * _UNITS[value[-1]]
    if seconds is not None and math.isfinite(seconds) and seconds >= 0:
        return datetime.fromtimestamp(at, UTC) + timedelta(seconds=seconds)
    if not has_date and value is not None:
        raise InvalidRequest(
            f"{key}: {value} is no time since the beginning of the simulation, such as 2h or 7200: dates are for "
            "--snapshot, which says what time it is"
        )
    return value


def _window(
    name: str,
    request: WindowRequest,
    hosts: Sequence[HostRow],
    others: Sequence[WindowRow],
    at: float,
    state: ClusterState | None,
    margin_s: float,
) -> WindowRow:
    start = at if request.start_at is None else max(at, request.start_at.timestamp())
    end = start + (request.duration_s or 0) if request.end_at is None else request.end_at.timestamp()
    if end <= start:
        raise InvalidRequest(f"{name}: window {request.name} would end before it begins: end it later")
    if any(other.name == request.name for other in others):
        raise InvalidRequest(f"{name}: there is a window {request.name} already: choose another name")
    window = WindowRow(
        name=request.name,
        start=start,
        end=end,
        places=(),
        maintenance=request.maintenance,
        period_s=None if request.repeat is None else request.repeat.period_s,
        until=None if request.until_at is None else request.until_at.timestamp(),
        namespaces=request.namespaces,
        users=request.users,
    )

    def in_the_way(free: WindowRow) -> dict[WindowPlace, int]:
        return {place: len(_jobs_in_the_way(free, [place], state, margin_s)) for place in free.places}

    ready = {host.name for host in hosts if host.state is HostState.READY}
    window = choose(window, request, {host.name: host.inventory for host in hosts}, ready, others, in_the_way)
    found = conflict(window, others)
    if found is not None:
        raise InvalidRequest(f"{name}: windows {request.name} and {found[0].name} would keep the same GPUs at one time")
    jobs = _jobs_in_the_way(window, window.places, state, margin_s)
    if jobs and not request.stop_running:
        raise InvalidRequest(
            f"{name}: {', '.join(jobs[:10])} may still run when {request.name} begins: "
            "begin later, choose other hosts, or say stop_running"
        )
    return window


def _jobs_in_the_way(
    window: WindowRow, places: Sequence[WindowPlace], state: ClusterState | None, margin_s: float
) -> list[str]:
    """Return the running jobs that hold something there and may still hold it when the window begins."""
    if state is None:
        return []
    whole = {place.host for place in places if place.gpu_uuids is None}
    single = {uuid for place in places for uuid in place.gpu_uuids or ()}
    of_hosts = {gpu.uuid for host in state.hosts if host.name in whole for gpu in host.inventory.gpus}
    found = []
    for row in state.running:
        ends = math.inf if row.time_limit_s is None else row.started_at + row.time_limit_s + row.grace_s
        is_there = not (single | of_hosts).isdisjoint(row.gpu_uuids) or any(use.host in whole for use in row.host_use)
        if is_there and ends > window.start - margin_s:
            found.append(row.job_id)
    return found
