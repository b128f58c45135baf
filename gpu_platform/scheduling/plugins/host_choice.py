"""Filters on which hosts a job takes: by their names, and by their labels."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.jobs.host_choice import HostChoice
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery


class HostNameFilter:
    """Keeps hosts whose names the request includes, and does not exclude."""

    code = ReasonCode.HOST_NAME
    can_change_by = ChangeKind.FACTS
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only if the request says something of names."""
        return bool(names_of(query.resources))

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        accepted = snapshot.accepted_by(names_of(query.resources))[hosts]
        return np.where(accepted, query.all_gpus(snapshot, hosts), np.uint64(0))


class LabelFilter:
    """Keeps hosts whose labels meet all constraints."""

    code = ReasonCode.LABEL
    can_change_by = ChangeKind.FACTS
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only if the request has constraints."""
        return bool(query.resources.constraints)

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        accepted = snapshot.accepted_by(HostChoice(query.resources.constraints))[hosts]
        return np.where(accepted, query.all_gpus(snapshot, hosts), np.uint64(0))


def names_of(resources: ResourceRequest) -> HostChoice:
    """Return what the request says of names alone."""
    return HostChoice(include=resources.hosts_include, exclude=resources.hosts_exclude)
