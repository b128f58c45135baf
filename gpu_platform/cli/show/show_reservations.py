"""Advance reservations and maintenance windows for people."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from gpu_platform.domain.texts import duration, moment, one_line
from gpu_platform.domain.windows import Window, WindowHost


def details(window: Window) -> RenderableType:
    """Everything about one of them."""
    kind = "maintenance window" if window.maintenance else "advance reservation"
    lasts = duration((window.end_at - window.start_at).total_seconds())
    again = "" if window.repeat is None else f", {window.repeat}"
    until = "" if window.until_at is None else f" until {moment(window.until_at)}"
    lines = [
        f"{window.name}: {kind}" + (f": {one_line(window.reason)}" if window.reason else ""),
        f"state:    {'open' if window.is_open else 'coming'}",
        f"when:     {moment(window.start_at)} to {moment(window.end_at)} ({lasts}){again}{until}",
        f"keeps:    {', '.join(_host(one) for one in window.hosts)}",
    ]
    if not window.maintenance:
        lines.append(f"for:      {whose(window.namespaces, window.users)}")
    if window.jobs:
        lines.append(f"jobs:     {', '.join(window.jobs)}")
    if window.to_stop:
        lines.append(f"stops:    {', '.join(window.to_stop)} (when it begins, if they still run then)")
    return Text("\n".join(lines))


def whose(namespaces: list[str], users: list[str]) -> str:
    """Whose jobs may use it."""
    of_users = f"jobs of {', '.join(users)}" if users else "jobs"
    return one_line(f"{of_users} in namespace {', '.join(namespaces)}" if namespaces else of_users)


def _host(one: WindowHost) -> str:
    if one.gpu_indices is None:
        return f"{one.host} ({one.gpus} GPUs)"
    return f"{one.host}:{','.join(map(str, one.gpu_indices))}"
