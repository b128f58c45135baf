"""A core that starts from the document of a live cluster, and what ends a holder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.placing.cluster_state import ClusterState, PastUseRow
from gpu_platform.domain.placing.quota import Namespace, Quotas
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queueing.fair_share import FairShare
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job

LIMITED = Policy(quotas=Quotas(namespaces=(Namespace(name="team", limit_gpus=8),)))


def running(job_id: str, host: str, gpus: int = 8, **fields: object) -> RunningRow:
    uuids = tuple(simulated_uuid(host, index) for index in range(gpus))
    row = RunningRow(job_id, 1, "team", "anna", 0, uuids, started_at=0.0)
    return replace(row, **fields)


def test_a_job_ends_even_if_its_gpus_broke() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0")
    scheduler = machines.scheduler(LIMITED)
    scheduler.started(running("old", "dgx-h100-0"))
    scheduler.add(job(gpus=8, name="next").of("team").row)
    assert scheduler.decide(10.0).placements == []
    machines.broken("dgx-h100-0")
    machines.tell(scheduler)
    assert scheduler.decide(11.0).placements == [], "the GPUs broke, but the job may still run on them"
    scheduler.ended("old", 1)
    assert [row.job_id for row, _ in scheduler.decide(12.0).placements] == ["next"]
    assert len(scheduler.running_jobs) == 1


def test_the_document_makes_the_same_core() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0")
    scheduler = machines.scheduler()
    holder = running("old", "dgx-h100-0", time_limit_s=100.0)
    scheduler.started(holder)
    gang = job(gpus=8, hosts=2, name="gang").row
    behind = job(gpus=8, name="behind").lasting(1000).row
    for row in (gang, behind):
        scheduler.add(row)
    state = ClusterState(
        at=5.0,
        hosts=list(machines.host_rows.values()),
        gpus=list(machines.gpu_rows.values()),
        running=[holder],
        queue=[behind, gang],
    )
    copy = load_cluster_state(Scheduler(), ClusterState.model_validate_json(state.model_dump_json()))
    decided, again = scheduler.decide(5.0), copy.decide(5.0)
    assert decided == again
    assert {reason.starts_by for reason in decided.reasons.values()} >= {100.0}


def test_use_that_is_over_counts_as_if_it_had_been_watched() -> None:
    watched, told = (FairShare(Quotas(), half_life_s=100.0) for _ in range(2))
    for gpus, begin, end in ((4, 0.0, 50.0), (8, 30.0, 200.0)):
        told.remember(PastUseRow("team", "anna", float(gpus), begin, end), 250.0)
    for gpus, at in ((4, 0.0), (8, 30.0), (-4, 50.0), (-8, 200.0), (0, 250.0)):
        watched.charge("team", "anna", gpus, at)
    for node in (("team",), ("team", "", "anna")):
        assert told.use(node, 300.0) == pytest.approx(watched.use(node, 300.0))
