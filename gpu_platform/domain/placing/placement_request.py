"""What the scheduler sees of a job: neither its program nor its files, only what it needs and for whom."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from pydantic import Field

from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.host_requirements import HostRequirements
from gpu_platform.domain.jobs.rank_group import RankGroup
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.run_time import RunTime

RankGroupRequests = tuple[tuple[str, ResourceRequest], ...]
"""(name, resources) of each rank group of a gang, in the order of the submission."""


class _PlaceableSpec(Protocol):
    """The fields of a ``JobSpec`` that the scheduler looks at."""

    @property
    def namespace(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def gpus(self) -> ResourceRequest: ...
    @property
    def groups(self) -> Sequence[RankGroup]: ...
    @property
    def spare_hosts(self) -> int: ...
    @property
    def host_requirements(self) -> HostRequirements: ...
    @property
    def environment(self) -> JobEnvironment | None: ...
    @property
    def reservation(self) -> str | None: ...
    @property
    def time_limit_s(self) -> float | None: ...
    @property
    def preemptible(self) -> bool: ...
    @property
    def checkpoints(self) -> bool: ...
    @property
    def grace_s(self) -> float: ...


NO_TOKEN = b""
"""Nobody waits for the answer in Temporal: the leader reserves the placement, and the job looks for it in the
database."""
TO_ARRAY = b"\1"
"""The workflow of the array that has the job as an element gets the answer as a signal."""
TOKEN_COMES = b"\0"
"""The job's workflow has stopped looking, and asks with a task token next. Until then its place is kept."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One attempt that waits for a placement: what must be placed together, for whom, and what it must not get."""

    job_id: str
    attempt: int
    resources: ResourceRequest
    """What it asks for, spare hosts included. With ``groups``: what the first group asks for."""
    priority: int
    namespace: str
    user: str
    enqueued_at: float
    """When it began to wait, Unix seconds."""
    excluded_gpus: frozenset[str] = frozenset()
    excluded_hosts: frozenset[str] = frozenset()
    class_key: str = ""
    """Jobs with the same key have the same resources and exclusions: one answer serves them all. See
    ``with_class_key``."""
    task_token: bytes = NO_TOKEN
    """Temporal's handle of the activity that waits for the placement. See also ``NO_TOKEN``, ``TO_ARRAY`` and
    ``TOKEN_COMES``."""
    time_limit_s: float | None = None
    """None: it may run for ever."""
    preemptible: bool = True
    checkpoints: bool = False
    """It resumes from its checkpoints, so it may be moved."""
    grace_s: float = 10.0
    """How long it may take to stop after its time limit. Windows count it: see ``Windows.answer``."""
    groups: RankGroupRequests = ()
    """Filled for a gang of several rank groups."""
    run_time: RunTime | None = None
    """How long it will probably run, learned from earlier runs. None: nobody knows. Only a guess: its time limit bounds
    what is promised."""
    assumed_limit_s: Annotated[float | None, Field(exclude=True)] = None
    """See ``with_assumed_limit``. None: backfill must not count on run times."""
    group: Annotated[str | None, Field(exclude=True)] = None
    """The rank group that it is for. None: the whole job. See ``rank_groups``."""

    @property
    def is_answered_in_temporal(self) -> bool:
        """True if a workflow waits for the placement, and reserves it."""
        return self.task_token not in (NO_TOKEN, TOKEN_COMES)

    @classmethod
    def from_spec(cls, spec: _PlaceableSpec, job_id: str, attempt: int, enqueued_at: float) -> PlacementRequest:
        """Build the request of a job that avoids no GPU and no host. Spare hosts are placed like all others."""
        groups = tuple((group.name, _of_job(group.gpus, spec)) for group in spec.groups)
        resources = _of_job(spec.gpus, spec)
        if groups:
            resources = groups[0][1]
        elif spec.spare_hosts:
            resources = resources.model_copy(update={"hosts": resources.hosts + spec.spare_hosts})
        return cls(
            job_id=job_id,
            attempt=attempt,
            resources=resources,
            priority=spec.priority,
            namespace=spec.namespace,
            user=spec.user,
            enqueued_at=enqueued_at,
            time_limit_s=spec.time_limit_s,
            preemptible=spec.preemptible,
            checkpoints=spec.checkpoints,
            grace_s=spec.grace_s,
            groups=groups,
        )

    def rank_groups(self) -> list[PlacementRequest]:
        """Return one request for each rank group, as if that group were all of the job."""
        if not self.groups:
            return [self]
        return [replace(self, resources=resources, groups=(), group=name) for name, resources in self.groups]

    def asking_for(self, resources: ResourceRequest) -> PlacementRequest:
        """Return the same request for other resources."""
        return replace(self, resources=resources)

    def without_exclusions(self) -> PlacementRequest:
        """Return the same request for a job that may get every GPU."""
        if not self.has_exclusions:
            return self
        return replace(self, excluded_gpus=frozenset(), excluded_hosts=frozenset())

    def with_class_key(self) -> PlacementRequest:
        """Return the request with the key of its class.

        The key is equal for jobs that the scheduler must answer equally, and stays the same over processes and releases
        of Python.
        """
        parts = [
            self.resources.model_dump(mode="json"),
            sorted(self.excluded_gpus),
            sorted(self.excluded_hosts),
            self.namespace,
            *([name, resources.model_dump(mode="json")] for name, resources in self.groups),
        ]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
        return replace(self, class_key=key)

    @property
    def requests(self) -> tuple[ResourceRequest, ...]:
        """Everything that must be placed together: one request, or one for each rank group."""
        return tuple(resources for _, resources in self.groups) or (self.resources,)

    @property
    def has_exclusions(self) -> bool:
        """True if it must not use certain GPUs or hosts."""
        return bool(self.excluded_gpus or self.excluded_hosts)

    @property
    def expected_run_s(self) -> float | None:
        """How long it will probably run, in seconds: what was learned, or else its time limit. None: nobody knows."""
        return self.time_limit_s if self.run_time is None else self.run_time.median_s

    def with_assumed_limit(self) -> PlacementRequest:
        """Return the request with what takes the place of its time limit if it has none: what 90 % of such runs keep.

        It is rounded up to a power of the square root of two, so that few different values come up.
        """
        if self.time_limit_s is not None or self.run_time is None:
            return self
        rounded = 2.0 ** (math.ceil(2 * math.log2(max(self.run_time.high_s, 1.0))) / 2)
        return replace(self, assumed_limit_s=rounded)

    @property
    def longest_s(self) -> float | None:
        """How long it runs at most, as far as backfill may count on it: its time limit, or the assumed one."""
        return self.assumed_limit_s if self.time_limit_s is None else self.time_limit_s

    @property
    def is_plain(self) -> bool:
        """True if one request asks for equal host slices, as most jobs do."""
        return not self.groups and self.resources.total is None

    @property
    def needs_partial_resources(self) -> bool:
        """True if it needs a share of a GPU, or CPUs or memory of hosts. Then counting free GPUs is not enough."""
        return self.needs_host_resources or any(one.share is not None for one in self.requests)

    @property
    def needs_host_resources(self) -> bool:
        """True if it asks for CPUs or memory of its hosts."""
        return any(one.takes_room_of_hosts for one in self.requests)

    @property
    def gpu_count(self) -> int:
        """GPUs of the whole gang, spare hosts included."""
        return sum(one.gpus for one in self.requests)

    @property
    def tenant(self) -> str:
        """The namespace whose GPUs it may share. Empty if it shares none, or only by MIG, which isolates tenants."""
        shares = [one.share for one in self.requests if one.share is not None]
        return self.namespace if any(share.mig_profile is None for share in shares) else ""


def _of_job(request: ResourceRequest, spec: _PlaceableSpec) -> ResourceRequest:
    """The request with what the job as a whole requires of its hosts."""
    of_hosts, environment = spec.host_requirements, spec.environment
    isolated, constraints = request.isolated or of_hosts.require_isolation, request.constraints
    if environment is not None and environment.container is not None:
        # The jail is what runs a container.
        isolated, constraints = True, (*constraints, *environment.constraints)
    reservation = request.reservation if spec.reservation is None else spec.reservation
    return request.model_copy(update={"isolated": isolated, "constraints": constraints, "reservation": reservation})
