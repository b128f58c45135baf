"""Who writes into Temporal does not choose where the ranks of a gang meet: control asks the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gpu_platform.domain.jobs.attempt import LaunchRequest, Prepared
from gpu_platform.domain.placing.host_plans import plan_hosts
from gpu_platform.store import Store
from gpu_platform.store.reservations import confirmations
from gpu_platform.temporal.payloads.orders import OrderedStep
from tests.support.store_cluster import NOW, Cluster, inventory, key
from workers.order_checks import OrderChecks

GANG = {"a": [0], "b": [0]}
ADDRESSES = ["10.0.0.1", "10.0.0.2"]
THIEF = "10.0.0.66"


def cluster_of(store: Store, *, isolates: bool = True) -> Cluster:
    cluster = Cluster(store)
    for name, address in zip("ab", ADDRESSES, strict=True):
        listed = inventory(name, 1).model_copy(update={"isolates_gangs": isolates})
        cluster.host(name, 1, address=address, inventory=listed)
    cluster.queued("j-1", hosts=2)
    cluster.reserve("j-1", GANG)
    return cluster


def refusal(store: Store, asked: str = "b", **wrong: Any) -> str | None:
    """Why control does not sign the launch on a host."""
    place = confirmations.held_place(store, key("j-1"))
    assert place is not None
    plans = {plan.host: plan for plan in plan_hosts(place.spec, key("j-1"), place.placement, place.terms)}
    right = {"host": "a", "address": ADDRESSES[0], "rendezvous_port": 29_500, "isolates_gangs": True, "gang": ADDRESSES}
    meeting = None if wrong.pop("alone", False) else Prepared(**{**right, **wrong})
    argument = LaunchRequest(plan=plans[asked], rendezvous=meeting).model_dump_json().encode()
    return OrderChecks(store).refusal(OrderedStep("launch_ranks", asked, "j-1", "JobWorkflow", argument))


def test_a_gang_meets_where_its_hosts_are(sqlite_store: Store) -> None:
    cluster_of(sqlite_store)
    assert refusal(sqlite_store, "a") is None
    assert refusal(sqlite_store, "b") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"gang": [ADDRESSES[0], THIEF]},
        {"gang": [*ADDRESSES, THIEF]},
        {"gang": [ADDRESSES[1], ADDRESSES[0]]},
        {"gang": ADDRESSES[:1]},
        {"gang": []},
        {"address": THIEF},
        {"host": "b"},
        {"alone": True},
    ],
    ids=str,
)
def test_another_network_is_not_signed(sqlite_store: Store, wrong: dict[str, Any]) -> None:
    cluster_of(sqlite_store)
    for host in "ab":
        assert refusal(sqlite_store, host, **wrong), wrong


def test_hosts_that_cannot_isolate_a_gang_share_their_own_network(sqlite_store: Store) -> None:
    cluster_of(sqlite_store, isolates=False)
    assert refusal(sqlite_store, gang=[]) is None
    assert refusal(sqlite_store, gang=[], address=THIEF)


def test_a_host_that_moved_is_not_believed_to_be_where_it_was(sqlite_store: Store) -> None:
    cluster = cluster_of(sqlite_store)
    cluster.report("b", 1, address=THIEF, inventory=inventory("b", 1), seq=2)
    assert refusal(sqlite_store)


@pytest.mark.parametrize(("later_s", "signed"), [(0, True), (1, False), (None, False)])
def test_the_deadline_of_a_job_is_in_the_order_and_nobody_moves_it(
    sqlite_store: Store, later_s: int | None, signed: bool
) -> None:
    deadline = NOW + timedelta(hours=1)
    cluster = Cluster(sqlite_store).host("a", 1)
    cluster.queued("j-1", deadline_at=deadline)
    cluster.reserve("j-1", {"a": [0]})
    place = confirmations.held_place(sqlite_store, key("j-1"))
    assert place is not None
    [plan] = plan_hosts(place.spec, key("j-1"), place.placement, place.terms)
    moved = None if later_s is None else deadline.timestamp() + later_s
    plan = plan.model_copy(update={"limits": plan.limits.model_copy(update={"deadline_at": moved})})
    argument = LaunchRequest(plan=plan).model_dump_json().encode()
    found = OrderChecks(sqlite_store).refusal(OrderedStep("launch_ranks", "a", "j-1", "JobWorkflow", argument))
    assert found == (None if signed else "the plan differs from the job in limits")
