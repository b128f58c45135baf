"""What everybody gets in the long run follows the weights; nobody waits for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.quota import Namespace, Quotas
from gpu_platform.scheduling.policy import Policy, build_order
from gpu_platform.scheduling.queueing.fair_share import FairShare
from gpu_platform.scheduling.round.order import InShareOrder, ServiceSortKey
from tests.builders import cluster, job
from tests.examples import few
from tests.virtual_time import VirtualTime


def tree(*nodes: tuple[str, str | None, float]) -> Quotas:
    return Quotas(namespaces=tuple(Namespace(name=n, parent=p, weight=w) for n, p, w in nodes))


def gpu_seconds(quotas: Quotas, who: dict[str, int], rounds: int) -> dict[str, float]:
    """Every namespace always has jobs (of so many GPUs) waiting; what each got, as a part of all."""
    machines = cluster().hosts(2)
    policy = Policy(order="fair_share", quotas=quotas, half_life_s=200.0)
    lengths = [7.0, 5.0, 11.0, 3.0]
    play = VirtualTime(machines, machines.scheduler(policy), lambda row: lengths[int(row.job_id[-3:]) % 4])
    got = dict.fromkeys(who, 0.0)
    rows: dict[str, PlacementRequest] = {}
    count = 0
    for _ in range(rounds):
        for namespace, gpus in who.items():
            while sum(row.namespace == namespace for row in play.scheduler.queue) < 16:
                count += 1
                row = job(gpus, name=f"{namespace}-{count % 1000:03d}").of(namespace).row
                if row.job_id in play.running or row.job_id in play.scheduler.queue:
                    continue
                rows[row.job_id] = row
                play.scheduler.add(row)
        play.decide()
        before, running = play.now, {job_id: len(p.gpu_uuids) for job_id, p in play.running.items()}
        play.step()
        for job_id, gpus in running.items():
            got[rows[job_id].namespace] += gpus * (play.now - before)
    total = sum(got.values())
    return {namespace: use / total for namespace, use in got.items()}


@pytest.mark.long
def test_use_converges_to_the_weights() -> None:
    got = gpu_seconds(tree(("a", None, 3.0), ("b", None, 1.0)), {"a": 1, "b": 1}, 600)
    assert got == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.02)


@pytest.mark.long
def test_use_converges_whatever_the_size_of_jobs() -> None:
    got = gpu_seconds(tree(("a", None, 1.0), ("b", None, 1.0)), {"a": 4, "b": 1}, 600)
    assert got == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.04)


@pytest.mark.long
def test_use_converges_level_by_level() -> None:
    quotas = tree(("lab", None, 1.0), ("x", "lab", 3.0), ("y", "lab", 1.0), ("z", None, 1.0))
    got = gpu_seconds(quotas, {"x": 1, "y": 1, "z": 1}, 600)
    assert got == pytest.approx({"x": 0.375, "y": 0.125, "z": 0.5}, abs=0.03)


def test_users_of_a_namespace_take_turns() -> None:
    machines = cluster().hosts(1).busy("dgx-h100-0", 0, 1, 2, 3)
    scheduler = machines.scheduler(Policy(order="fair_share"))
    for number in range(4):
        scheduler.add(job(1, name=f"a{number}").of("lab", "anna").row)
    for number in range(4):
        scheduler.add(job(1, name=f"b{number}").of("lab", "bert").row)
    assert [row.job_id for row, _ in scheduler.decide(0.0).placements] == ["a0", "b0", "a1", "b1"]


@given(charges=st.lists(st.tuples(st.integers(-3, 4), st.floats(0, 100)), max_size=20))
@settings(max_examples=few(50), deadline=None)
def test_the_average_is_that_of_the_whole_history(charges: list[tuple[int, float]]) -> None:
    """Against the integral of what was held, weighted with half-lives."""
    shares, now, held, history = FairShare(Quotas(), 50.0), 0.0, 0, []
    for change, wait in charges:
        change = max(change, -held)
        shares.charge("a", "u", change, now)
        held += change
        history.append((now, now + wait, held))
        now += wait
    expected = sum(h * (0.5 ** ((now - end) / 50.0) - 0.5 ** ((now - start) / 50.0)) for start, end, h in history)
    assert shares.use(("a",), now) == pytest.approx(expected + held, abs=1e-6)


@given(ageing=st.sampled_from([1.0, 60.0, 3600.0]), priority=st.integers(1, 5))
@settings(max_examples=few(20), deadline=None)
def test_with_ageing_a_job_of_low_priority_starts_in_the_end(ageing: float, priority: int) -> None:
    """Jobs of higher priority keep coming, more than the cluster can serve."""
    machines = cluster().hosts(1)
    hour = 3600.0
    play = VirtualTime(machines, machines.scheduler(Policy(ageing_per_hour=ageing)), lambda row: hour / ageing)
    play.submit(job(8, name="low").arrived(0.0).row, job(8, name="first").priority(priority).arrived(0.0).row)
    for number in range(20 * priority):
        play.submit(job(8, name=f"high{number}").priority(priority).arrived(play.now).row)
        play.step()
        if "low" in play.started:
            break
    assert play.started["low"] <= hour / ageing * (priority + 2)


def test_without_ageing_it_never_does() -> None:
    machines = cluster().hosts(1)
    play = VirtualTime(machines, machines.scheduler(), lambda row: 1.0)
    play.submit(job(8, name="low").arrived(0.0).row, job(8, name="first").priority(1).arrived(0.0).row)
    for number in range(50):
        play.submit(job(8, name=f"high{number}").priority(1).arrived(play.now).row)
        play.step()
    assert "low" not in play.started


@given(seed=st.integers(0, 10_000))
@settings(max_examples=few(40), deadline=None)
def test_jobs_come_in_the_order_of_shares_while_jobs_start(seed: int) -> None:
    """Each job is the least of all that are left, by the shares at that moment."""
    rng = random.Random(seed)
    shares = FairShare(tree(("lab", None, 2.0), ("x", "lab", 3.0), ("y", "lab", 1.0), ("z", None, 1.0)), 200.0)
    order = build_order(Policy(order=rng.choice(["fair_share", "multifactor"]), order_weights={"fair_share": 5.0}))
    rows = [
        job(rng.randint(1, 4), name=f"j{number:02d}").of(rng.choice("xyz"), rng.choice("ab")).arrived(rng.random()).row
        for number in range(rng.randint(1, 30))
    ]
    rows.sort(key=order.sort_key)

    def key(row: PlacementRequest) -> ServiceSortKey:
        sort_key = order.sort_key(row)
        return order.share_key(sort_key, *order.share(row.namespace, row.user, shares, 8, 300.0)), sort_key

    left, turns = set(range(len(rows))), InShareOrder(rows, key)
    while (place := turns.take()) is not None:
        assert place == min(left, key=lambda one: key(rows[one]))
        left.remove(place)
        if rng.random() < 0.5:
            shares.charge(rows[place].namespace, rows[place].user, rows[place].gpu_count, 300.0)
    assert not left
