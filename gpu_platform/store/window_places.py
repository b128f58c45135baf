"""Which hosts and GPUs of the database a new window gets: see ``window_choice``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.domain.placing.window_choice import choose, named_hosts
from gpu_platform.domain.states import HostState
from gpu_platform.domain.windows import WindowRequest
from gpu_platform.store.jobs.admission import parse_inventory
from gpu_platform.store.models import host
from gpu_platform.store.window_holders import overlapping


def choose_places(
    session: Session, window: WindowRow, request: WindowRequest, others: Sequence[WindowRow]
) -> WindowRow:
    """Inside a transaction: the window with what it keeps. Its hosts are locked.

    Hosts that are free for it come first: in service, kept by no other window, and without jobs that may still run when
    it begins. Raises :class:`InvalidRequest` if there are too few.
    """
    found = session.execute(_HOSTS).all()
    known = [row.name for row in found]
    lock_hosts(session, named_hosts(request, known) if request.hosts else known)
    hosts = {row.name: parse_inventory(row.inventory) for row in found}
    ready = {row.name for row in found if row.state == HostState.READY}
    return choose(window, request, hosts, ready, others, lambda free: overlapping(session, free, by_place=True))


def lock_hosts(session: Session, names: Iterable[str]) -> None:
    """Inside a transaction: lock the rows of these hosts, in the order in which everybody does."""
    session.execute(_LOCK, {"names": sorted(names)})


_HOSTS = select(host.c.name, host.c.state, host.c.inventory).order_by(host.c.name)
_LOCK = (
    select(host.c.name)
    .where(host.c.name.in_(bindparam("names", expanding=True)))
    .order_by(host.c.name)
    .with_for_update(key_share=True)
)
