"""The screen skips requests by what it knows of hosts. A filter that looks at more switches it off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from gpu_platform.domain.hosts.share import ShareMode
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Filter, HostQuery
from gpu_platform.scheduling.policy import Policy, build_framework
from gpu_platform.scheduling.round.screen import FEWEST, RequestScreen
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job

CLASS = {
    "machine",
    "cuda",
    "isolates",
    "mps",
    "cpus",
    "ram_mib",
    "all_gpus",
    "size",
    "cuda_bits",
    "matching",
    "accepted_by",  # asked host by host
    "machines",
}
"""What hosts of one class of the screen have in common, and tables of it."""
KNOWN = {
    ChangeKind.FACTS: CLASS,
    # Windows: a request for a reservation is not screened, and for others the screen is never stricter without them.
    ChangeKind.HEALTH: CLASS | {"ready", "working", "hot", "windows"},
    ChangeKind.USE: CLASS
    | {"available", "shared", "tenants", "cpus_used", "cpus_held", "ram_mib_used", "ram_mib_held", "uuid"},
}
"""For each kind of filter, what the screen reads or leaves open: a request that it does not count out gets a look."""
FILTERS = build_framework(Policy(system_cpus=1, system_ram_mib=1, max_temperature_c=80.0)).filters


class _Watched:
    """A snapshot that notes what is read of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self.read = snapshot, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._snapshot, name)


@pytest.mark.parametrize("step", FILTERS, ids=lambda step: f"{type(step).__name__}-{step.code}-{step.can_change_by}")
def test_a_filter_that_is_screened_reads_only_what_the_screen_knows(step: Filter) -> None:
    scheduler = cluster().host("a", cpus=8, ram_mib=1000, mps=True).scheduler()
    wanted = job(2).needs(model="H100", memory_gib=1, capability="8.0").cuda("12.4").on_host(2, 100)
    isolated = wanted.where("zone=a", include=["a"]).request
    isolated = isolated.model_copy(update={"isolated": True, "reservation": "course"})
    shared = job(1).share(50, mode=ShareMode.MPS).request
    watched, asked = _Watched(scheduler.snapshot), 0
    for request in (isolated, shared, job(1).mig("1g.10gb").request):
        query = HostQuery(request, excluded={0: 1}, tenant="default", closed=frozenset({"maintenance"}))
        if step.applies_to(query):
            asked += 1
            step(query, cast(Snapshot, watched), np.array([0], np.intp))
    assert asked, "the test must ask for what the filter is about"
    assert step.is_screened
    assert watched.read <= KNOWN[step.can_change_by]


class _EvenHosts:
    """A filter that someone adds to the platform: only hosts with even numbers."""

    code = ReasonCode.NOT_ISOLATED
    can_change_by = ChangeKind.FACTS
    is_screened = False

    def applies_to(self, query: HostQuery) -> bool:
        return True

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return np.where(hosts % 2 == 0, query.all_gpus(snapshot, hosts), np.uint64(0))


def test_a_filter_that_the_screen_does_not_know_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the screen on, all hosts are one class, and host 0 speaks for host 1."""
    plain = build_framework(Policy())
    known = replace(plain, filters=(*plain.filters, _EvenHosts()))
    monkeypatch.setattr("gpu_platform.scheduling.round.state.build_framework", lambda policy, expected: known)
    machines = cluster().hosts(2).busy("dgx-h100-0")
    scheduler = machines.scheduler()
    assert scheduler.snapshot.names == ["dgx-h100-0", "dgx-h100-1"]
    assert RequestScreen(plain, scheduler.snapshot).works
    assert not RequestScreen(known, scheduler.snapshot).works
    for n in range(2 * FEWEST):
        scheduler.add(job(8, name=f"j{n:03d}").lasting(100.0 + n).row)
    assert not scheduler.decide(0.0).placements
    reason = scheduler.why("j000", 0.0)
    assert reason is not None
    assert {count.code: count.hosts for count in reason.counts} == {ReasonCode.BUSY: 1, ReasonCode.NOT_ISOLATED: 1}
    assert isinstance(scheduler, Scheduler)
