"""Why windows keep a job waiting: which hosts are kept, for what and when, and how long the job may run before."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import EstimateBasis, Reason, WaitCode
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.window import WindowRow, kind_of, span_text, time_text
from gpu_platform.domain.texts import duration
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.windows import ALL_CLOSED, holds_at_most_s, reservation_of

NAMED = 2
"""How many windows or hosts a sentence names."""


def kept_for(snapshot: Snapshot, hosts: NDArray[np.intp]) -> str:
    """Say for what these hosts are kept."""
    windows, wanted = snapshot.windows, set(hosts.tolist())
    found = [row for row in _in_order(snapshot) if wanted.intersection(windows.kept(row.name).hosts.tolist())]
    texts = [kind_of(row) for row in found]
    return " and ".join(texts[:NAMED]) + (" and more" if len(texts) > NAMED else "") or "for others"


def behind_windows(
    request: PlacementRequest, reason: Reason, snapshot: Snapshot, *, is_dated: bool
) -> dict[str, object]:
    """Return what windows change of a reason. Empty: nothing, because the job would wait without them, too.

    ``is_dated``: it has an estimated start, which respects windows.
    """
    windows = snapshot.windows
    closed, asked = windows.answer(request), reservation_of(request)
    if closed is None:
        return {}
    no_date: dict[str, object] = (
        {}
        if reason.starts_by is not None or is_dated
        else {"estimated_start": None, "estimated_between": None, "estimate": EstimateBasis.WINDOW}
    )
    if closed == ALL_CLOSED:
        own = windows.rows.get(asked or "")
        return {"code": WaitCode.WINDOW, "next_step": _not_open(request, asked or "", own, windows.now), **no_date}
    if not any(count.code == "window" for count in reason.counts) and request.is_plain:
        return {}
    found = [one for one in _in_order(snapshot) if one.name in closed]
    if not found:
        return {}
    first = found[0]
    names = sorted(snapshot.names[host_index] for host_index in windows.kept(first.name).hosts.tolist())
    where = (
        f"host {names[0]} is"
        if len(names) == 1
        else f"hosts {', '.join(sorted(names)[:NAMED])}{', …' if len(names) > NAMED else ''} are"
    )
    kept = f"{where} kept {kind_of(first)}"
    left_s = windows.closes_at(first) - windows.now - request.grace_s
    if first.is_open or left_s < 60:
        step = f"{kept}: wait, or for other hosts to become free"
    elif request.time_limit_s is None:
        step = f"{kept}, and this job has no time limit: give it one of at most {duration(left_s)} (--time), or wait"
    else:
        until = time_text(windows.now + holds_at_most_s(request))
        step = (
            f"{kept}; this job may hold it until {until}, with the {duration(request.grace_s)} that it has to stop: "
            f"give it a --time of at most {duration(left_s)}, or wait"
        )
    return {"code": WaitCode.WINDOW, "next_step": step, **no_date}


def _not_open(request: PlacementRequest, asked: str, own: WindowRow | None, now: float) -> str:
    """Say why the advance reservation for which the job asks is not open to it."""
    if own is None:
        return f"there is no advance reservation {asked} now: name another (jobs update --reservation), or cancel it"
    if not own.allows(request.namespace, request.user):
        return f"the advance reservation {asked} is not for jobs of {request.user} in namespace {request.namespace}"
    longest = math.inf if request.time_limit_s is None else request.time_limit_s
    if longest > own.duration_s:
        return f"{asked} lasts {duration(own.duration_s)}: give the job a time limit of at most that (--time)"
    when = span_text(own.start, own.end)
    if own.is_open and now + longest > own.end:
        again = "" if own.period_s is None else ", or wait until it begins again"
        left = duration(max(0.0, own.end - now))
        return f"the advance reservation {asked} is open {when}: give the job a --time of at most {left}{again}"
    return f"the advance reservation {asked} is open {when}: the job waits for it"


def _in_order(snapshot: Snapshot) -> list[WindowRow]:
    return sorted(snapshot.windows.rows.values(), key=lambda row: (row.start, row.name))
