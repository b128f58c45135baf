"""What a node worker sends every few seconds, and the answer to it.

The first report is full. While its facts stay the same, the host sends heartbeats, which only name the facts by their
hash. A service that does not know this hash asks for a full report: a new service, a restored database, another
cluster. Fields of the lease protocol are explained in ``lease_protocol``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.bounds import (
    MAX_ATTEMPTS,
    MAX_GPUS,
    BigCount,
    Count,
    HostName,
    ReportedAttempt,
    ShortText,
    SmallCount,
    Text,
    Uuid,
)
from gpu_platform.domain.hosts.gpu import HostInventory


class GpuTelemetry(BaseModel):
    """What a host measured of one GPU. None: this GPU or driver does not report the value."""

    uuid: Uuid
    temperature_c: Annotated[int, Field(ge=-300, le=10_000)] | None = None
    power_w: Annotated[float, Field(ge=0, le=1e6)] | None = None
    utilization_percent: SmallCount | None = None
    memory_used_mib: Count | None = None


class SavedCheckpoint(BaseModel):
    """The newest complete checkpoint of an attempt, as one of its hosts sees it."""

    key: ReportedAttempt
    written_at: Annotated[float, Field(ge=0, lt=1e11)]
    """Unix seconds, by the clock of the file system."""
    name: Text = ""
    """Its directory below the attempt's directory. Empty: the attempt's directory itself."""


FactsHash = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{16})?$")]


class Heartbeat(BaseModel):
    """Renews the lease of a host whose facts the service knows already: a few bytes.

    It names the facts by their hash, and says whatever else changes. So one that is lost, late or sent twice does no
    harm: the next one says everything again. Whatever a host says, it is bounded: see ``bounds``.
    """

    name: HostName
    protocol: SmallCount = 0
    """The version of the protocol that the node worker speaks: ``protocol.PROTOCOL`` of its release."""
    facts: FactsHash = ""
    """The hash of the host's facts: see :func:`facts_hash`. Empty: it has none."""
    attempts: list[ReportedAttempt] = Field(default=[], max_length=MAX_ATTEMPTS)
    """Attempts with processes on this host."""
    checkpoints: list[SavedCheckpoint] = Field(default=[], max_length=MAX_ATTEMPTS)
    """The newest checkpoint of each of ``attempts`` that has one."""
    degraded: dict[Uuid, Text] = Field(default={}, max_length=MAX_GPUS)
    """GPU uuid -> why the host itself says that it must get no new work (temperature, lost device)."""
    telemetry: list[GpuTelemetry] | None = Field(default=None, max_length=MAX_GPUS)
    """None: it is not due. What was reported last stays."""

    seq: BigCount = 0
    """The number of this report since the host booted. 0: it has none."""
    round: BigCount = 0
    """The lease round in the newest answer that the host got."""
    voted: bool = False
    """The host gave a vote and must not be counted as heard for a while: see ``LeaseTimes.vote_binds_s``."""
    members_version: BigCount = 0
    """The version of the newest list of members that the host knows."""
    lease_s: Annotated[float | None, Field(gt=0, le=3600)] = None
    """The lease that the host asks for, in seconds. It is longer before a planned restart of the node worker. None:
    the usual one."""


class HostReport(Heartbeat):
    """Registers a host and renews its lease. It has everything that the host knows: its facts, too."""

    session: ShortText
    """A new value at every start of the node worker."""
    boot_id: ShortText | None = None
    """A new value at every boot of the machine. None: the host does not know it."""
    address: ShortText
    """The address at which ranks of other hosts reach this one."""
    agent_url: Annotated[str, StringConstraints(max_length=512, pattern=r"^[!-~]*$")]
    """The URL at which the service fetches logs and runs commands: ``https://10.0.0.7:41234``. It must be on the host
    that sends the report. Without TLS it has the node worker's password: ``http://service:…@127.0.0.1:41234``."""
    leaf: ShortText | None = None
    spine: ShortText | None = None
    inventory: HostInventory
    checkpoint_root: Text | None = None
    """Identity of the checkpoint root. Hosts that report the same one see each other's checkpoints. None: unknown."""

    def heartbeat(self) -> Heartbeat:
        """The same without the facts."""
        return Heartbeat.model_construct(**{name: getattr(self, name) for name in Heartbeat.model_fields})


_FACTS = frozenset(HostReport.model_fields) - frozenset(Heartbeat.model_fields) | {"name"}


def facts_hash(report: HostReport) -> str:
    """16 hexadecimal digits that name the facts of a host: everything in its report that is not in its heartbeats.

    The host computes it, and the service only compares: so hosts and services of different releases understand each
    other.
    """
    facts = report.model_dump(mode="json", include=set(_FACTS))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ReportedFacts:
    """What a host knows of what the control plane knows of its facts."""

    known: FactsHash = ""
    """The hash in the newest full report that was answered, if nobody has asked for another one since."""

    def must_be_full(self, report: HostReport) -> bool:
        """True if the next report must be a full one: a heartbeat would not be understood."""
        return not report.facts or report.facts != self.known

    def answered(self, report: HostReport) -> ReportedFacts:
        """After a full report was answered."""
        return ReportedFacts(report.facts)

    def refused(self) -> ReportedFacts:
        """After a heartbeat was not understood: the service knows other facts, or none."""
        return ReportedFacts()


class Member(BaseModel):
    """A host that is not LOST."""

    name: str
    url: str
    """The URL at which its node worker answers other hosts."""


class MembersChange(BaseModel):
    """The difference between two lists of members. A thousand hosts do not get the whole list when one joins."""

    joined: list[Member] = []
    """Also members whose URL is another one now."""
    left: list[str] = []


class VerdictHeld(BaseModel):
    """Why silent hosts are not declared LOST: too many are silent at once."""

    since: datetime
    silent: list[str]
    """Hosts whose leases have ended."""
    heard: int
    """How many members the leader hears."""
    members: int

    @property
    def message(self) -> str:
        """The sentence that operators read: who is silent, and what to do."""
        return (
            f"{len(self.silent)} hosts are silent ({some(self.silent)}) and are not declared LOST: only {self.heard} "
            f"of {self.members} hosts are heard, less than half, so the fault may be on this side. It ends when they "
            "report again; if they are really dead: gpu-platform hosts declare-lost HOST"
        )


class ServicesAway(BaseModel):
    """Hosts that report through Temporal, because no service answers them."""

    hosts: list[str]

    @property
    def message(self) -> str:
        """The sentence that operators read: which hosts, what it means, and what to do."""
        return (
            f"{len(self.hosts)} hosts report through Temporal ({some(self.hosts)}), because no service answers them: "
            "their leases are renewed and their jobs run on. Look at the services that they know (api_url, api_urls) "
            "and at the network between"
        )


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of these names, for a sentence."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


class LeaseAnswer(BaseModel):
    """The leader's answer to a host's report. ``ttl_s`` is the length of the lease in seconds."""

    ttl_s: float
    protocol: int = 0
    """The version of the protocol that the control plane speaks."""
    draining: bool = False
    """The host is being drained: it asks what runs there for a checkpoint, once."""
    kill: list[AttemptKey] = []
    """Stale attempts: they hold nothing here any more, so the host kills their ranks."""
    online_ms: int | None = None
    """When an operator last put the host online, Unix time in ms. Resets before it do not count against the host any
    more."""
    renewed: bool = True
    """False: the report brought back a round that is too old, so earlier answers may have been lost. The lease stays
    as it was. A report that brings back the round of this answer renews it."""
    round: int = 0
    """The lease round that the host must send with its next report."""
    term: int = 0
    """The host's term. It grows each time that the host is declared LOST."""
    members_version: int = 0
    members: list[Member] | None = None
    """The list of members. None: the host knows it already, or gets ``members_change``."""
    members_change: MembersChange | None = None
    """What makes the list of the heartbeat's version into that of this version. None: nothing, or ``members``."""
    report_in_s: float | None = None
    """When the next heartbeat is due. A node worker with a rhythm of its own in its settings keeps to that."""
    telemetry_in_s: float | None = None
    """When the next telemetry is due."""
    cluster: str | None = None
    """The name of the service's cluster, in the answer to a full report. None: it was not said."""
    revoked: dict[str, float] | None = None
    """Machine -> when it was revoked, Unix seconds: certificates from before are not believed. None: nothing new."""


REPORTS_PER_LEASE = 5
"""More seldom, and one lost report could cost the lease, or the leader would not hear the host: see ``LeaseTimes``."""
TELEMETRY_PER_S = 100
"""So many hosts may report telemetry in a second; in a larger cluster each does so less often."""


def rhythm(ttl_s: float, members: int) -> dict[str, Any]:
    """The fields of an answer that say when the next heartbeat and the next telemetry are due."""
    report_in_s = ttl_s / REPORTS_PER_LEASE
    return {"report_in_s": report_in_s, "telemetry_in_s": max(report_in_s, members / TELEMETRY_PER_S)}


@dataclass(frozen=True)
class DomainLoss:
    """Most hosts of a failure domain are lost at the same time."""

    level: str
    name: str
    hosts: tuple[str, ...]
    """The lost hosts, sorted by name."""
    of: int
    """The number of all hosts of the domain."""

    def __str__(self) -> str:
        return f"{self.level} {self.name} ({len(self.hosts)} of {self.of} hosts)"
