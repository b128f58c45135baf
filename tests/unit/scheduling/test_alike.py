"""Which requests are alike: what one of them is told, promised and given may be used for another."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.promises import what_is_asked
from gpu_platform.scheduling.placing.candidates import shape_of
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job

DIFFERENT: dict[str, object] = {
    "hosts": 2,
    "total": 3,
    "gpus_per_host": 2,
    "share": Share(percent=50, memory_mib=1024),
    "cpus_per_host": 3,
    "ram_mib_per_host": 4,
    "cpus_per_gpu": 5,
    "ram_mib_per_gpu": 6,
    "cuda": "12.4",
    "isolated": True,
    "reservation": "course",
    "constraints": ("zone=a",),
    "hosts_include": ("a",),
    "hosts_exclude": ("a",),
    "memory_mib": 5,
    "min_compute_capability": "8.0",
    "model": "H100",
    "exclude_model": "T4",
    "min_bandwidth_gb_s": 100.0,
    "allow_cross_numa": True,
    "strategy": Strategy.SPREAD,
    "required_level": "leaf",
    "preferred_level": "leaf",
}
NOT_ASKED = {
    "job_id", "attempt", "priority", "user", "enqueued_at", "class_key", "task_token", "preemptible", "checkpoints",
    "group", "run_time", "assumed_limit_s", "grace_s",
}  # fmt: skip
"""Fields of a request that do not say what it needs."""


@pytest.mark.parametrize("name", ResourceRequest.model_fields)
def test_requests_that_differ_in_any_field_share_no_reason_and_no_need(name: str) -> None:
    row = job(1).row
    other = replace(row, resources=row.resources.model_copy(update={name: DIFFERENT[name]}))
    assert other.with_class_key().class_key != row.with_class_key().class_key
    assert JobQueue().need(other) != JobQueue().need(row)


def test_all_that_a_request_says_of_a_host_makes_its_shape() -> None:
    """Jobs of one shape share the answers of the filters and scores."""
    of_the_gang = {"hosts", "total", "cpus_per_gpu", "ram_mib_per_gpu"}  # these become amounts of each host
    of_a_host = {name: value for name, value in DIFFERENT.items() if name not in of_the_gang}
    assert set(ResourceRequest.model_fields) - set(of_a_host) == of_the_gang
    row = job(1).row
    for name, value in of_a_host.items():
        other = replace(row, resources=row.resources.model_copy(update={name: value}))
        assert shape_of(other) != shape_of(row), name


def test_a_promise_is_for_what_was_asked_then() -> None:
    row = job(1).row.with_class_key()
    other: dict[str, object] = {
        "resources": job(2).request,
        "groups": (("a", job(2).request),),
        "time_limit_s": 5.0,
        "excluded_gpus": frozenset("a"),
        "excluded_hosts": frozenset("a"),
        "namespace": "other",
    }
    assert {field.name for field in fields(PlacementRequest)} == NOT_ASKED | set(other)
    for name, value in other.items():
        changed = replace(row, **{name: value}).with_class_key()  # pyright: ignore[reportArgumentType]
        assert what_is_asked(changed) != what_is_asked(row), name


def _two_hosts() -> Scheduler:
    """One host has CUDA 11.8 and is free at 50, the other has 12.4 and is free at 100."""
    machines = cluster().host("a").host("b")
    for name, version in (("a", "11.8"), ("b", "12.4")):
        row = machines.host_rows[name]
        inventory = row.inventory.model_copy(update={"cuda_installations": {version: f"/cuda-{version}"}})
        machines.host_rows[name] = replace(row, inventory=inventory)
    scheduler = machines.scheduler(Policy(backfill="conservative", order="fcfs"))
    for name, version, limit in (("on-a", "11.8", 50.0), ("on-b", "12.4", 100.0)):
        scheduler.add(job(8, name=name).cuda(version).lasting(limit).row)
    for row, placement in scheduler.decide(0.0).placements:
        for part in placement.slices:
            machines.busy(part.host)
        scheduler.upsert_gpus(machines.gpu_rows.values())
        scheduler.confirm(row.job_id, row.attempt)
    return scheduler


@pytest.mark.parametrize("first", ["plain", "cuda"])
def test_dates_and_the_jobs_in_the_way_are_those_of_the_right_host(first: str) -> None:
    scheduler = _two_hosts()
    rows = {"plain": job(8, name="plain").lasting(5.0).row, "cuda": job(8, name="cuda").cuda("12.4").lasting(5.0).row}
    for name in (first, *(name for name in rows if name != first)):
        scheduler.add(replace(rows[name], enqueued_at=1e6 if name != first else 1e5))
    scheduler.decide(1.0)
    assert scheduler.promises == {"plain": 50.0, "cuda": 100.0}
    for name, holder in (("plain", "on-a"), ("cuda", "on-b")):
        reason = scheduler.why(name, 1.0)
        assert reason is not None
        assert [one.job_id for one in reason.holders] == [holder]
        assert (reason.starts_by, reason.estimated_start) == (scheduler.promises[name],) * 2
