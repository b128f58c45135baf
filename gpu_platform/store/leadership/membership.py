"""The numbered lists of members: which hosts are not LOST, and where their node workers answer.

Hosts ask each other whether the control plane is away, and the leader counts them; see
``gpu_platform.domain.hosts.lease_protocol``. A host may know an older list than the leader, so older lists stay for
as long as some host may know them.
"""

from __future__ import annotations

import functools
import json
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sqlalchemy import Engine, case, delete, func, insert, select, text
from sqlalchemy.orm import Session

from gpu_platform.domain.hosts.lease import Member, MembersChange
from gpu_platform.domain.states import HostState
from gpu_platform.store.models import host, membership

_LOCK = 0x6770755F6D656D62  # "gpu_memb"
KEPT_LISTS = 64
"""So many lists each process keeps in memory. A list with a number never changes."""
AT_ONCE = 32
"""With more hosts than this, a new list is not written for each host that joins: see :func:`joined`."""


@dataclass(frozen=True)
class _List:
    """A list that was committed: it never changes."""

    urls: Mapping[str, str]
    """Name -> address."""

    @cached_property
    def names(self) -> frozenset[str]:
        """One object for each list: the leader compares the lists of all hosts every second."""
        return frozenset(self.urls)


_lists: weakref.WeakKeyDictionary[Engine, OrderedDict[int, _List]] = weakref.WeakKeyDictionary()


def joined(session: Session) -> None:
    """Inside a transaction in which a host came: it is a member at once, or in a large cluster within a second or so.

    A thousand hosts that come within a minute would cause a thousand lists, and every host would have to learn each. A
    host that is not in the list that it knows counts no votes, so its ranks end with its lease: no rank runs twice.
    """
    if current_version(session) < _time_ms() - 1000 or count(session) <= AT_ONCE:
        refresh(session)


def catch_up(session: Session) -> None:
    """Write a new list if hosts have joined that are in none yet. The leader does this in every round."""
    newest = _list(session, current_version(session))
    if count(session) != (0 if newest is None else len(newest.urls)):
        refresh(session)


def refresh(session: Session) -> None:
    """Inside a transaction that changed hosts: write a new list if the members have changed."""
    if session.get_bind().dialect.name == "postgresql":
        # Two hosts that register at once would each write a list without the other.
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    members = json.dumps([[row.name, _address(row.url)] for row in session.execute(_LIVING)])
    newest = session.execute(_NEWEST).one_or_none()
    if newest is not None and newest.members == members:
        return
    session.info["synced"] = True  # a version that hosts know must not be given to another list after a power cut
    # At least the Unix time in milliseconds. So a database that was restored to an older point, or a standby that lacks
    # the last lists, does not give their numbers to other lists.
    version = max(0 if newest is None else newest.version + 1, _time_ms())
    session.execute(insert(membership).values(version=version, members=members))
    session.info["written_list"] = version
    oldest = session.scalar(_OLDEST_KNOWN)
    session.execute(delete(membership).where(membership.c.version < min(oldest or version, version)))


def current_version(session: Session) -> int:
    """The number of the newest list; 0: there is none yet."""
    return session.scalar(_VERSION) or 0


def count(session: Session) -> int:
    """How many hosts are not LOST."""
    return session.scalar(_COUNT) or 0


def read_members(session: Session, version: int) -> list[Member]:
    """The hosts of the list with this number, with the addresses of their node workers; empty if it is gone."""
    return [Member(name=name, url=url) for name, url in _urls(session, version).items()]


def change_between(session: Session, known: int, version: int) -> MembersChange | None:
    """What makes list ``known`` into list ``version``. None: one of them is gone, or the whole list is as short."""
    before, after = _list(session, known), _list(session, version)
    if before is None or after is None:
        return None
    joined = [Member(name=name, url=url) for name, url in after.urls.items() if before.urls.get(name) != url]
    left = sorted(before.names - after.names)
    return None if len(joined) + len(left) >= len(after.urls) else MembersChange(joined=joined, left=left)


def news(session: Session, known: int, version: int) -> dict[str, Any]:
    """The fields of an answer that bring a host from list ``known`` to ``version``: nothing, a change, or a list."""
    if known == version:
        return {}
    if known and (change := change_between(session, known, version)) is not None:
        return {"members_change": change}
    return {"members": read_members(session, version)}


def names(session: Session, versions: Iterable[int]) -> dict[int, frozenset[str]]:
    """Number -> the names of the members, for those of ``versions`` that are not gone."""
    found = {version: _list(session, version) for version in versions}
    return {version: one.names for version, one in found.items() if one is not None}


def _time_ms() -> int:
    return int(time.time() * 1000)


def _urls(session: Session, version: int) -> Mapping[str, str]:
    found = _list(session, version)
    return {} if found is None else found.urls


def _list(session: Session, version: int) -> _List | None:
    """The list with this number. None: it is gone."""
    kept = _lists.setdefault(session.get_bind().engine, OrderedDict())
    found = kept.get(version)
    if found is None:
        text = session.scalar(select(membership.c.members).where(membership.c.version == version))
        if text is None:
            return None
        found = _List(dict(json.loads(text)))
        if version == session.info.get("written_list"):  # not committed yet: it may become another one
            return found
        kept[version] = found
        while len(kept) > KEPT_LISTS:
            kept.popitem(last=False)
    return found


@functools.lru_cache(maxsize=16_384)
def _address(worker_url: str) -> str:
    """Without the password, which is for the service alone."""
    parts = urlsplit(worker_url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


_LIVING = select(host.c.name, host.c.url).where(host.c.state != HostState.LOST.value).order_by(host.c.name)
_COUNT = select(func.count()).select_from(host).where(host.c.state != HostState.LOST.value)
_NEWEST = select(membership).order_by(membership.c.version.desc()).limit(1)
_VERSION = select(func.max(membership.c.version))
# A node worker that has just begun reports that it knows no list (0). It may know the one that it was answered.
_KNOWN = case((host.c.members_known > 0, host.c.members_known), else_=host.c.members_sent)
_OLDEST_KNOWN = select(func.min(_KNOWN)).where(host.c.state != HostState.LOST.value, _KNOWN > 0)
