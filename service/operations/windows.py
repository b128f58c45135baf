"""Advance reservations and maintenance windows: who sees what of them, and warnings about them."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_platform.domain.hosts.gpu import Host
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.window import kind_of
from gpu_platform.domain.texts import counted
from gpu_platform.domain.windows import Window, WindowChanges, WindowRequest
from gpu_platform.store import Store, windows
from service.access.gate import Access
from service.access.masking import HIDDEN
from service.context import ServiceContext, now


def listed(context: ServiceContext, access: Access) -> list[Window]:
    """The windows that concern the one who asks: all maintenance, and the advance reservations of their namespaces and
    of themselves.
    """
    return [_masked(one, access) for one in windows.list_windows(context.store) if _concerns(one, access)]


def described(context: ServiceContext, access: Access, name: str) -> Window:
    """One window with its jobs. Raises :class:`NotFound`, also for one that concerns others only."""
    found = windows.describe(context.store, name)
    if not _concerns(found, access):
        raise windows.no_such_window(name)
    return _masked(found, access)


def create(context: ServiceContext, access: Access, request: WindowRequest) -> Window:
    """Make a window. Raises :class:`InvalidRequest` and :class:`InUse`."""
    windows.create(context.store, request, access.actor, now())
    return windows.describe(context.store, request.name)


def change(context: ServiceContext, access: Access, name: str, changes: WindowChanges) -> Window:
    """Change a window. Raises :class:`NotFound`, :class:`InvalidRequest` and :class:`InUse`."""
    windows.change(context.store, name, changes, access.actor, now())
    return windows.describe(context.store, name)


def with_windows(context: ServiceContext, hosts: Sequence[Host]) -> list[Host]:
    """The hosts with the times in which they are kept."""
    kept = windows.windows_by_host(context.store)
    return [host.model_copy(update={"windows": kept[host.name]}) if host.name in kept else host for host in hosts]


def window_warnings(store: Store, spec: JobSpec) -> list[str]:
    """A warning for a job without a time limit: it never starts on hosts with a coming window."""
    if spec.time_limit_s is not None:
        return []
    rows = windows.read_rows(store)
    if not rows:
        return []
    first = min(rows, key=lambda row: row.start)
    hosts = {place.host for row in rows for place in row.places}
    are = "is" if len(hosts) == 1 else "are"
    return [
        f"without a time limit it does not start on {counted(len(hosts), 'host')} that {are} "
        f"kept later (first {kind_of(first)}): "
        "give it one (--time), so that it may run before"
    ]


def _concerns(window: Window, access: Access) -> bool:
    if access.namespaces is None or window.maintenance:
        return True
    if window.namespaces and not access.namespaces.intersection(window.namespaces):
        return False
    return bool(window.namespaces) or access.user in window.users


def _masked(window: Window, access: Access) -> Window:
    """Without the names of others' namespaces, users and jobs."""
    if access.namespaces is None:
        return window
    seen = access.namespaces
    namespaces = [one if one in seen else HIDDEN for one in window.namespaces]
    users = [one if one == access.user else HIDDEN for one in window.users]
    update = {"namespaces": _once(namespaces), "users": _once(users), "actor": HIDDEN, "jobs": [], "to_stop": []}
    return window.model_copy(update=update)


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))
