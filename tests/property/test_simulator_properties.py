"""Whatever the trace: no GPU twice, no job lost, and what the report says adds up."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.scheduling.backfilling.backfill import BACKFILLS
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queueing.queue_order import ORDERS
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.failures import Outage
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob
from gpu_platform.scheduling.simulator.records import JobOutcome
from tests.support.examples import few
from tests.support.simulations import Simulation, came

CLUSTER = ClusterFile(hosts=[HostGroup(count=2, gpus=4, name="big"), HostGroup(count=3, gpus=2, name="small")]).rows()
GPUS = {gpu.uuid: (row.name, gpu.index) for row in CLUSTER for gpu in row.inventory.gpus}

times = st.integers(0, 60).map(float)


@st.composite
def jobs(draw: st.DrawFn) -> list[TraceJob]:
    count = draw(st.integers(0, 25))
    return [
        came(
            f"j{number:02d}",
            at=draw(times),
            runs=draw(times),
            gpus=draw(st.integers(1, 5)),
            hosts=draw(st.integers(1, 3)),
            limit=draw(st.none() | st.just(30.0)),
            priority=draw(st.integers(0, 2)),
            namespace=draw(st.sampled_from("ab")),
            grace_s=draw(st.sampled_from([0.0, 3.0])),
            checkpoint_s=draw(st.none() | st.just(4.0)),
        )
        for number in range(count)
    ]


def _failure(host: HostRow, gpu: int | None, at_s: float, down_s: float) -> Outage:
    return Outage(at_s=at_s, host=host.name, gpu=None if gpu is None else gpu % len(host.inventory.gpus), down_s=down_s)


failures = st.lists(
    st.builds(_failure, st.sampled_from(CLUSTER), st.none() | st.integers(0, 3), times, st.integers(1, 50).map(float)),
    max_size=8,
).map(lambda some: sorted(some, key=lambda failure: failure.at_s))

OWNERS = Quotas(
    policy=AllocationPolicy.HYBRID,
    reserved_ratio=0.0,
    namespaces=(Namespace(name="a", guaranteed_gpus=6), Namespace(name="b", guaranteed_gpus=4)),
)
policies = st.builds(
    Policy,
    order=st.sampled_from(sorted(ORDERS)),
    backfill=st.sampled_from(BACKFILLS),
    preemption=st.booleans(),
    defragmentation=st.booleans(),
    defragment_after_s=st.just(5.0),
    recovery=st.booleans(),
    min_run_s=st.sampled_from([0.0, 10.0]),
    quotas=st.sampled_from([Quotas(), OWNERS]),
)
simulations = st.builds(
    lambda some, broken, policy, until, checkpoint: Simulation(
        tuple(some), CLUSTER, policy, tuple(broken), until, checkpoint
    ),
    jobs(),
    failures,
    policies,
    st.none() | times,
    st.none() | st.just(7.0),
)


@settings(max_examples=few(40), deadline=None)
@given(simulations)
def test_every_job_is_accounted_for_and_the_sums_agree(simulation: Simulation) -> None:
    run, report = simulation.run(), simulation.report()
    assert sum(report.jobs.values()) == len(simulation.jobs)
    assert {record.job.id for record in run.records} == {job.id for job in simulation.jobs}
    if simulation.until_s is None:
        # Nothing breaks for ever here, so whatever was admitted has ended.
        assert report.jobs_left == 0
    held = run.timeline.integral("held", run.begin_s, run.end_s)
    assert math.isclose(held, sum(record.gpu_seconds for record in run.records), abs_tol=1e-6)
    for record in run.records:
        if record.outcome is JobOutcome.COMPLETED:
            work = record.job.duration_s * record.job.gpus.gpus
            assert math.isclose(record.gpu_seconds - record.lost_gpu_seconds, work, abs_tol=1e-6)
    for ratio in (report.utilisation, report.allocation_ratio, report.fragmentation, report.fairness):
        assert 0 <= ratio <= 1 + 1e-9


@pytest.mark.long
@settings(max_examples=few(30), deadline=None)
@given(simulations)
def test_the_same_input_gives_the_same_report(simulation: Simulation) -> None:
    assert simulation.report() == simulation.report()


VICTIM_ON_A_HOST_THAT_BREAKS_IN_ITS_GRACE = Simulation(
    (
        came("victim", at=0.0, runs=30.0, gpus=4, hosts=2, namespace="a", grace_s=3.0),
        came("urgent", at=13.0, runs=10.0, gpus=4, namespace="a", grace_s=0.0, priority=1),
    ),
    CLUSTER,
    Policy(preemption=True, min_run_s=0.0),
    (Outage(at_s=15.0, host="big-0000", down_s=1.0),),
)


@settings(max_examples=few(40), deadline=None)
@given(simulations)
@example(VICTIM_ON_A_HOST_THAT_BREAKS_IN_ITS_GRACE)
def test_no_gpu_is_ever_used_twice_or_while_it_is_broken(simulation: Simulation) -> None:
    run = simulation.run()
    taken = {uuid: [] for uuid in GPUS}
    for failure in simulation.failures[: run.failures]:
        for uuid, (host, index) in GPUS.items():
            if host == failure.host and failure.gpu in (None, index):
                taken[uuid].append((failure.at_s, failure.at_s + failure.down_s, "broken"))
    for record in run.records:
        for stay in record.held_periods:
            assert len(set(stay.gpu_uuids)) == len(stay.gpu_uuids) == record.job.gpus.gpus
            for uuid in stay.gpu_uuids:
                taken[uuid].append((stay.begin_s, stay.end_s, record.job.id))
    for spans in taken.values():
        for one, other in combinations(spans, 2):
            both_broken = one[2] == other[2] == "broken"
            assert both_broken or max(one[0], other[0]) >= min(one[1], other[1]), f"{one} and {other}"
