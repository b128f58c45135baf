"""A filter plugin: hosts with the label ``whole: "yes"`` are given away only whole (say, those kept for gangs)."""

from __future__ import annotations

import numpy as np

from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import FilterText, HostQuery


class WholeHosts:
    """The answer for a host may depend on the request and that host's own row alone."""

    name = "whole_hosts"
    can_change_by = ChangeKind.FACTS
    text = FilterText(
        rejected="given away only whole",
        asked="a host of which a part may be taken",
        next_step="ask for all GPUs of a host",
    )

    def applies_to(self, query: HostQuery) -> bool:
        return True

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        labelled = np.array(
            [snapshot.inventory(host_index).labels.get("whole") == "yes" for host_index in hosts.tolist()], bool
        )
        wanted = 0 if query.resources.share is not None else query.resources.gpus_per_host
        whole = np.bitwise_count(snapshot.all_gpus[hosts]) == wanted
        return np.where(labelled & ~whole, np.uint64(0), query.all_gpus(snapshot, hosts))
