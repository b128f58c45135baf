"""Every message that a host can send, and what each of its fields may name.

``docs/explanation/hosts-that-lie.md`` has the same table for people. A field that is not here fails
``test_every_field_of_a_hosts_message_is_classified``: whoever adds one says what it names, and it is lied about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args

from pydantic import BaseModel

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory, Nic, NvLink
from gpu_platform.domain.hosts.lease import GpuTelemetry, Heartbeat, HostReport, SavedCheckpoint
from gpu_platform.domain.hosts.remediation import RemediationInput
from gpu_platform.domain.jobs.array_steps import ElementEnded, ElementLaunched
from gpu_platform.domain.jobs.artifacts import StepOutput
from gpu_platform.domain.jobs.attempt import (
    FaultReport,
    GpuFault,
    HostExits,
    Launched,
    Prepared,
    RankExit,
    RankStarted,
    Stopped,
)
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.usage import RankUsage


class Names(StrEnum):
    """What a field names."""

    ITSELF = "a fact of the host or of its own ranks"
    HOST = "host"
    GPU = "GPU"
    JOB = "job"
    ATTEMPT = "attempt"
    RANK = "rank"
    ADDRESS = "address"
    NUMBER = "number of a report, a round or a list"
    TIME = "time"
    TEXT = "text"
    FAULT = "number of a fault"


N = Names


def _itself(*names: str) -> dict[str, Names]:
    return dict.fromkeys(names, Names.ITSELF)


FIELDS: dict[type[BaseModel], dict[str, Names]] = {
    AttemptKey: {"job_id": N.JOB, "attempt": N.ATTEMPT},
    Heartbeat: {
        "name": N.HOST,
        "degraded": N.GPU,
        "seq": N.NUMBER,
        "round": N.NUMBER,
        "members_version": N.NUMBER,
        "lease_s": N.TIME,
        **_itself("protocol", "facts", "attempts", "checkpoints", "telemetry", "voted"),
    },
    HostReport: {
        "address": N.ADDRESS,
        "url": N.ADDRESS,
        **_itself("session", "boot_id", "leaf", "spine", "inventory", "checkpoint_root"),
    },
    SavedCheckpoint: {"key": N.ITSELF, "written_at": N.TIME, "name": N.TEXT},
    GpuTelemetry: {
        "uuid": N.GPU,
        **_itself("temperature_c", "power_w", "utilization_percent", "memory_used_mib"),
    },
    GpuInfo: {
        "uuid": N.GPU,
        **_itself("index", "model", "memory_mib", "compute_capability", "pci_bus_id", "numa_node", "socket"),
        **_itself("pcie_switch", "serial", "mig_capable"),
    },
    NvLink: _itself("a", "b", "links"),
    Nic: _itself("name", "kind", "pci_bus_id", "numa_node", "gpus"),
    HostInventory: {
        "refused_gpus": N.GPU,
        **_itself("machine", "driver_version", "cuda_version", "cpus", "ram_mib", "cuda_installations"),
        **_itself("unusable_cuda", "mps", "mig_profiles", "simulated", "isolation", "missing_guarantees"),
        **_itself("isolates_gangs", "gpus", "nvlinks", "nvlink_generation", "nvswitches", "nics", "source"),
        **_itself("nvlink_domain", "labels", "outputs_root"),
    },
    FaultReport: {
        "fault_id": N.FAULT,
        "host": N.HOST,
        "gpu_uuid": N.GPU,
        "message": N.TEXT,
        "at_ms": N.TIME,
        **_itself("gpu_index", "xid", "action", "attempt", "blameless", "between_jobs"),
    },
    GpuFault: _itself("attempt", "report"),
    RemediationInput: {"gpu_uuid": N.GPU, "host": N.HOST, **_itself("max_failures", "retry_interval_s")},
    Prepared: {
        "host": N.HOST,
        "address": N.ADDRESS,
        "gang": N.ADDRESS,
        "resume_from": N.TEXT,
        "resume_note": N.TEXT,
        **_itself("rendezvous_port", "gang_key", "isolates_gangs", "step_key"),
    },
    Launched: {"host": N.HOST, **_itself("ranks", "prepared", "ended")},
    RankStarted: {"rank": N.RANK, "host": N.HOST, "started_at_ms": N.TIME, "pid": N.ITSELF},
    RankExit: {
        "rank": N.RANK,
        "host": N.HOST,
        "ended_at_ms": N.TIME,
        **_itself("exit_code", "vanished", "failure"),
    },
    Failure: {
        "rank": N.RANK,
        "host": N.HOST,
        "gpu_uuid": N.GPU,
        "message": N.TEXT,
        **_itself("kind", "exit_code", "xid", "before_start", "host_full", "no_secrets"),
    },
    HostExits: {"host": N.HOST, **_itself("exits", "first_failure", "usage")},
    RankUsage: {
        "rank": N.RANK,
        "host": N.HOST,
        **_itself("seconds", "gpu_seconds", "mean_utilization_percent", "peak_utilization_percent"),
        **_itself("mean_gpu_memory_mib", "peak_gpu_memory_mib", "energy_j", "cpu_s", "peak_memory_mib"),
        **_itself("ecc_errors", "throttled_s"),
    },
    Stopped: {"host": N.HOST, **_itself("exits", "killed_processes", "usage")},
    ElementLaunched: _itself("key", "ended", "failure", "prepared"),
    ElementEnded: _itself("key", "exits", "stopped"),
    StepOutput: {"text": N.TEXT, "problem": N.TEXT},
}


@dataclass(frozen=True)
class Message:
    """A message of a host."""

    name: str
    """As in the table of the page."""
    model: type[BaseModel] | None
    """What it says. None: all that it says is in the names of its way."""


MESSAGES = (
    Message("report to a service", HostReport),
    Message("heartbeat to a service", Heartbeat),
    Message("question for secrets", None),
    Message("question for uploaded code", None),
    Message("new certificate", None),
    Message("report through Temporal", HostReport),
    Message("fault of a GPU", FaultReport),
    Message("begin of a remediation", RemediationInput),
    Message("fault for a job", GpuFault),
    Message("a watch has failed", None),
    Message("answer to prepare_host", Prepared),
    Message("answer to launch_ranks", Launched),
    Message("answer to watch_ranks", HostExits),
    Message("answer to stop_ranks", Stopped),
    Message("answer to launch_elements", ElementLaunched),
    Message("answer to watch_elements", ElementEnded),
    Message("answer to read_output", StepOutput),
    Message("answer to a repair", None),
    Message("failure of a step", Failure),
    Message("heartbeat of a step", None),
    Message("vote", None),
    Message("answer to a question of the service", None),
)


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """A model, and all models in its fields."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from models_in(field.annotation)
    for argument in get_args(kind):
        yield from models_in(argument)


def names_of(model: type[BaseModel]) -> dict[str, Names]:
    """Field -> what it names, also of the models that it inherits from."""
    return {name: what for kind in reversed(model.__mro__) for name, what in FIELDS.get(kind, {}).items()}


@dataclass(frozen=True)
class Lie:
    """A field, at all its places in a message, and what is written there."""

    path: tuple[str, ...]
    names: Names
    value: Any

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={self.value!r}"[:80]

    def told(self, document: Any) -> Any:
        """The message (JSON) with the lie."""
        return _told(document, self.path, self.value)


def _told(document: Any, path: tuple[str, ...], value: Any) -> Any:
    if isinstance(document, list):
        return [_told(item, path, value) for item in document]
    if not path:
        return {value: next(iter(document.values()), "")} if isinstance(document, dict) else value
    if document is None or path[0] not in document:
        return document
    return {**document, path[0]: _told(document[path[0]], path[1:], value)}


def lies_in(model: type[BaseModel], victim: dict[Names, list[Any]], path: tuple[str, ...] = ()) -> Iterator[Lie]:
    """Every lie about the victim in each field of a message. ``victim``: what fields that name this say instead."""
    for name, what in names_of(model).items():
        inside = list(models_in(model.model_fields[name].annotation))[:1]
        if inside:
            yield from lies_in(inside[0], victim, (*path, name))
        for value in victim.get(what, ()) if not inside else ():
            yield Lie((*path, name), what, value)
