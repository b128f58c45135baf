"""Allocation policies over random workloads: limits are never broken, and guarantees are met in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting.victim_planning import PREEMPT_AGAIN_S
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob
from gpu_platform.scheduling.simulator.records import SimulatedJob
from tests.support.examples import few
from tests.support.simulations import Simulation, came, hosts

CLUSTER = hosts(3, gpus=4)
GPUS = 12
MIN_RUN_S, GRACE_S = 20.0, 3.0
NAMESPACES = (
    Namespace(name="a", guaranteed_gpus=5, limit_gpus=9),
    Namespace(name="b", guaranteed_gpus=4, max_gpus_per_user=5),
    Namespace(name="c", limit_gpus=11),
)
GUARANTEED = {space.name: space.guaranteed_gpus for space in NAMESPACES}
times = st.integers(0, 60).map(float)


@st.composite
def jobs(draw: st.DrawFn) -> list[TraceJob]:
    """Owners' jobs have one GPU, so that no shape is in the way of a guarantee; others' are of any shape."""
    made = []
    for number in range(draw(st.integers(5, 30))):
        namespace = draw(st.sampled_from("abcc"))
        wide = namespace == "c" or draw(st.integers(0, 4)) == 0
        made.append(
            came(
                f"j{number:02d}",
                at=draw(times),
                runs=draw(st.sampled_from([5.0, 40.0, 1000.0])),
                gpus=draw(st.integers(1, 4)) if wide else 1,
                hosts=draw(st.sampled_from([1, 1, 2])) if wide else 1,
                limit=draw(st.none() | st.just(1000.0)),
                namespace=namespace,
                user=draw(st.sampled_from("xy")),
                grace_s=GRACE_S,
            )
        )
    return made


def simulation(some: list[TraceJob], policy: AllocationPolicy, ratio: float, preemption: bool) -> Simulation:
    quotas = Quotas(policy=policy, reserved_ratio=ratio, namespaces=NAMESPACES)
    return Simulation(tuple(some), CLUSTER, Policy(quotas=quotas, preemption=preemption, min_run_s=MIN_RUN_S))


def most_held(records: list[SimulatedJob], counts: Callable[[SimulatedJob], bool]) -> int:
    """The most GPUs that these jobs ever held at once."""
    changes = sorted(
        change
        for record in records
        if counts(record)
        for stay in record.held_periods
        for change in ((stay.begin_s, 1, len(stay.gpu_uuids)), (stay.end_s, 0, -len(stay.gpu_uuids)))
    )
    most = held = 0
    for _, _, more in changes:
        held += more
        most = max(most, held)
    return most


@settings(max_examples=few(30), deadline=None)
@given(jobs(), st.sampled_from(AllocationPolicy), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_no_limit_is_ever_broken(some: list[TraceJob], policy: AllocationPolicy, ratio: float, preempts: bool) -> None:
    records = simulation(some, policy, ratio, preempts).until(400.0).run().records
    for space in NAMESPACES:
        held = most_held(records, lambda record, name=space.name: record.job.namespace == name)
        assert held <= (GPUS if space.limit_gpus is None else space.limit_gpus)
        if policy is AllocationPolicy.STATIC:
            assert held <= space.guaranteed_gpus
        for user in "xy":
            held = most_held(
                records,
                lambda record, name=space.name, user=user: (record.job.namespace, record.job.user) == (name, user),
            )
            assert held <= (GPUS if space.max_gpus_per_user is None else space.max_gpus_per_user)


@settings(max_examples=few(30), deadline=None)
@given(jobs(), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_guarantee_is_met_in_bounded_time(some: list[TraceJob], ratio: float) -> None:
    """Each victim has its guaranteed run time, then its grace; and one after the other is asked to leave."""
    run = simulation(some, AllocationPolicy.HYBRID, ratio, preemption=True).until(600.0).run()
    bound_s = MIN_RUN_S + (GRACE_S + 2 * PREEMPT_AGAIN_S) * GPUS
    for name in "ab":
        for begin_s, end_s in unmet(run.records, name, run.end_s):
            assert end_s - begin_s <= bound_s, f"{name} waited for its guarantee from {begin_s} to {end_s}"


def unmet(records: list[SimulatedJob], name: str, end_s: float) -> Iterator[tuple[float, float]]:
    """When the namespace had jobs waiting for one GPU and held less than its guarantee: (begin, end)."""
    own = [record for record in records if record.job.namespace == name and record.request.gpu_count <= GPUS]
    moments = sorted({
        moment
        for record in own
        for moment in (record.job.submit_s, *(t for stay in record.held_periods for t in (stay.begin_s, stay.end_s)))
        if moment <= end_s
    })  # fmt: skip
    since = None
    for moment in [*moments, end_s]:
        held = sum(
            len(stay.gpu_uuids) for record in own for stay in record.held_periods if stay.begin_s <= moment < stay.end_s
        )
        waits = any(waits_at(record, moment) for record in own if record.request.gpu_count == 1)
        lacks = waits and held < GUARANTEED[name] and moment < end_s
        if lacks and since is None:
            since = moment
        elif not lacks and since is not None:
            yield since, moment
            since = None


def waits_at(record: SimulatedJob, moment: float) -> bool:
    """Came, does not hold GPUs, and will not have ended."""
    if record.job.submit_s > moment or (record.end_s is not None and record.end_s <= moment):
        return False
    return not any(stay.begin_s <= moment < stay.end_s for stay in record.held_periods)
