"""Refuses, as the platform does, jobs that the empty cluster could never hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import largest_gang
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.topology.fabric import Fabric, FabricConfig


class AdmissionCheck:
    """Remembers its answers: the hosts of a simulation stay the same."""

    def __init__(self, hosts: Sequence[HostRow], config: FabricConfig) -> None:
        fabric = Fabric(config)
        self._inventories = [host.inventory for host in hosts]
        self._places = [(host.name, fabric.labels_of(host)) for host in hosts]
        self._answers: dict[ResourceRequest, bool] = {}

    def fits(self, resources: ResourceRequest) -> bool:
        """Tell whether the hosts could hold it if all of them were empty."""
        if resources not in self._answers:
            accepted = [resources.host_choice.accepts(*place) for place in self._places]
            chosen = list(compress(self._inventories, accepted))
            # Without hosts nothing is known, and everything may fit. Here all hosts are known.
            fits = largest_gang(chosen, resources).fits and (bool(chosen) or not self._inventories)
            self._answers[resources] = fits
        return self._answers[resources]
