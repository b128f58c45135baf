"""Tables of who decides: the leader, and the hosts that its decisions count on."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Text
from sqlmodel import Field

from gpu_platform.store.models.columns import Record, big_count_column, optional_time_column, text_column, time_column


class LeaderRecord(Record, table=True):
    """One row: who decides, and the fencing token."""

    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    epoch: int
    holder: str = text_column()
    since: datetime = time_column()
    round: int = big_count_column()
    """Counts the leader's looks at the leases."""
    verdict_held: str = Field(default="", sa_type=Text)
    """Reasons why silent hosts are not declared LOST now, as JSON. Empty: there are none."""
    policy: str = Field(default="{}", sa_type=Text)
    """The policy in force, as JSON. The service reads it here."""
    older_seen_at: datetime | None = optional_time_column()
    """When a host last proved that it knows a newer state than this database."""
    restored: str = Field(default="", sa_type=Text)
    """The last restore, as JSON: when, and how many jobs; empty: there was none."""
    plugin_faults: str = Field(default="[]", sa_type=Text)
    """Filters and scores of other packages that it has switched off, as JSON: a list of :class:`PluginFault`."""
    start_ratios: str = Field(default="{}", sa_type=Text)
    """How far estimated starts were off, as JSON: see ``gpu_platform.prediction.start_intervals``."""


class LeaderSignRecord(Record, table=True):
    """A loop of the leader, and when it last came round: one that stands still writes nothing."""

    loop: str = Field(primary_key=True, sa_type=Text)
    epoch: int
    """Of the leader whose loop it is."""
    at_ms: int = Field(sa_type=BigInteger)
    """Unix time in milliseconds, by the leader's clock. Readers whose clock differs look whether it changes."""


class MembershipRecord(Record, table=True):
    """The hosts that are not LOST, as a numbered list; see ``gpu_platform.domain.hosts.lease_protocol``."""

    version: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    members: str = text_column()
    """JSON list of [host, address of its node worker]."""
