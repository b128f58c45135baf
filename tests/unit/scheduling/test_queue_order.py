"""Orders and the factors that they are made of: what each is worth, and that nobody starves."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.errors import InvalidRequest, PluginFailed
from gpu_platform.domain.placing.cluster_state import PastUseRow
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.quota import Namespace, Quotas
from gpu_platform.scheduling.policy import Policy, build_order
from gpu_platform.scheduling.policy_file import is_broken, read_policy
from gpu_platform.scheduling.queueing.fair_share import FairShare
from gpu_platform.scheduling.queueing.queue_order import ORDERS, UNKNOWN_RUN_S
from tests.builders import cluster, job
from tests.support.examples import few
from tests.support.plugins import ORDER_FACTORS, install
from tests.support.simulations import came, hosts, trace

HOUR = 3600.0
QUOTAS = Quotas(namespaces=(Namespace(name="urgent", order=2.0), Namespace(name="idle", order=-1.5)))
WEIGHTS = st.sampled_from([-3.0, -0.5, 0.0, 0.25, 1.0, 7.0])


def _row(name: str, gpus: int, hours: float | None, at: float, priority: int, namespace: str) -> PlacementRequest:
    row = job(gpus, name=name).of(namespace).priority(priority).arrived(at).row
    return replace(row, time_limit_s=None if hours is None else hours * HOUR)


ROWS = st.lists(
    st.builds(
        _row,
        name=st.uuids().map(str),
        gpus=st.sampled_from([1, 2, 4, 8]),
        hours=st.sampled_from([None, 0.1, 1.0, 9.0, 500.0]),
        at=st.floats(0, 48 * HOUR).map(round),
        priority=st.integers(-2, 3),
        namespace=st.sampled_from(["urgent", "idle", "other"]),
    ),
    min_size=2,
    max_size=12,
    unique_by=lambda row: row.job_id,
)


def _served(policy: Policy, rows: list[PlacementRequest]) -> list[str]:
    """Return the order in which the jobs start when each needs the whole only host of its size."""
    scheduler = cluster().hosts(1).scheduler(replace(policy, backfill="none"))
    for row in rows:
        scheduler.add(replace(row, resources=job(8).request))
    order = []
    while len(scheduler.queue):
        ((row, placement),) = scheduler.decide(0.0).placements
        scheduler.reject(row.job_id, row.attempt)
        order.append(row.job_id)
        assert placement.gpu_uuids
    return order


@given(rows=ROWS, ageing=st.sampled_from([0.0, 0.5, 10.0]))
@settings(max_examples=few(60), deadline=None)
def test_the_orders_of_before_mean_the_same(rows: list[PlacementRequest], ageing: float) -> None:
    by_priority = sorted(rows, key=lambda r: (-(r.priority - ageing / HOUR * r.enqueued_at), r.enqueued_at, r.job_id))
    by_arrival = sorted(rows, key=lambda row: (row.enqueued_at, row.job_id))
    for name, expected in (("priority", by_priority), ("fair_share", by_priority), ("fcfs", by_arrival)):
        order = build_order(Policy(order=name, ageing_per_hour=ageing))
        assert [row.job_id for row in sorted(rows, key=order.sort_key)] == [row.job_id for row in expected], name


@given(rows=ROWS, weights=st.dictionaries(st.sampled_from(["priority", "size", "shortest", "namespace"]), WEIGHTS))
@settings(max_examples=few(60), deadline=None)
def test_mixed_weights_give_the_order_computed_by_hand(rows: list[PlacementRequest], weights: dict[str, float]) -> None:
    """One host serves one job at a time, so the order of the starts is the order of the queue."""
    given = {"priority": 0.0, "shortest": 0.0, "fair_share": 0.0, **weights}

    def place(row: PlacementRequest) -> float:
        minutes = (UNKNOWN_RUN_S if row.time_limit_s is None else row.time_limit_s) / 60
        hours = given["priority"] * row.priority - given["shortest"] * math.log2(1 + minutes)
        hours += given.get("namespace", 0.0) * {"urgent": 2.0, "idle": -1.5}.get(row.namespace, 0.0)
        return row.enqueued_at / HOUR - hours - given.get("size", 0.0) * math.log2(8)

    policy = Policy(order="multifactor", order_weights=given, quotas=QUOTAS)
    served = _served(policy, rows)
    places = {row.job_id: place(row) for row in rows}
    assert sorted(served) == sorted(places)
    for before, after in pairwise(served):
        assert places[before] <= places[after] + 1e-6


@pytest.mark.parametrize(
    ("factor", "row", "value"),
    [
        ("priority", job().priority(-7).row, -7.0),
        ("size", job(8, hosts=4).row, 5.0),
        ("size", job(1).row, 0.0),
        ("shortest", job(8).lasting(180.0).row, -2.0),
        ("least_work", job(8, hosts=2).lasting(60.0 * 15).row, -math.log2(1 + 15 * 16)),
        ("size_class", job(1).lasting(3599.0).row, 0.0),
        ("size_class", job(8).lasting(3600.0).row, -2.0),
        ("size_class", job(8, hosts=8).lasting(9 * HOUR).row, -4.0),
        ("namespace", job().of("urgent").row, 2.0),
    ],
)
def test_what_a_factor_is_worth(factor: str, row: PlacementRequest, value: float) -> None:
    """With the weight 1 and an age that counts 2 each hour, 1 is worth half an hour."""
    row = replace(row, enqueued_at=1000.0)
    weights = dict.fromkeys(("priority", "shortest", "size", "fair_share"), 0.0)
    policy = Policy(order="multifactor", order_weights={**weights, factor: 1.0, "age": 2.0}, quotas=QUOTAS)
    _, place, _ = build_order(policy).sort_key(row)
    assert place == pytest.approx(1000.0 - value * 1800.0)


def test_priority_goes_before_any_head_start_but_in_multifactor() -> None:
    long, short = job(name="long").priority(1).lasting(900 * HOUR), job(name="short").lasting(60.0)
    for order, first in (("shortest", "long"), ("size_classes", "long"), ("multifactor", "short")):
        key = build_order(Policy(order=order)).sort_key
        assert min((long.row, short.row), key=key).job_id == first, order


@given(
    order=st.sampled_from(["shortest", "size_classes", "multifactor"]),
    late=st.floats(0, 400).map(lambda hours: hours * HOUR),
    other=st.sampled_from([60.0, HOUR, 90 * HOUR]),
)
@settings(deadline=None)
def test_a_job_is_passed_only_by_those_that_come_within_the_difference_of_head_starts(
    order: str, late: float, other: float
) -> None:
    """So a job at which all others came that long ago is the first: nobody starves."""
    rule = build_order(Policy(order=order))
    huge, small = job(8, hosts=16, name="a").lasting(1000 * HOUR).row, job(1, name="b").lasting(other).arrived(late).row
    most = rule.sort_key(huge)[1] - rule.sort_key(replace(small, enqueued_at=0.0))[1]
    assert most < 100 * HOUR
    passes = rule.sort_key(small) < rule.sort_key(huge)
    assert passes == (late < most)


@pytest.mark.long
@pytest.mark.parametrize("order", [name for name in ORDERS if name != "fair_share"])
@pytest.mark.parametrize("backfill", ["easy", "none"])
def test_an_endless_stream_of_short_jobs_does_not_starve_a_gang(order: str, backfill: str) -> None:
    """More short jobs come than the hosts can run, for four days."""
    short = [came(f"s{n:04d}", at=n * 300.0, runs=900.0, gpus=8, limit=900.0) for n in range(1152)]
    gang = came("gang", at=1.0, runs=10 * HOUR, gpus=8, hosts=2, limit=10 * HOUR)
    run = trace(short, gang).on(hosts(2)).under(Policy(order=order, backfill=backfill)).until(1152 * 300.0)
    started = run.records()["gang"].first_start_s
    assert started is not None
    assert started < 48 * HOUR


@given(rows=ROWS, order=st.sampled_from(sorted(ORDERS)))
@settings(max_examples=few(40), deadline=None)
def test_the_order_of_two_jobs_never_changes_while_they_wait(rows: list[PlacementRequest], order: str) -> None:
    """Rows may be added and removed in any order: the queue finds each by the key that it got first."""
    scheduler = cluster().hosts(1).scheduler(Policy(order=order))
    for row in rows:
        scheduler.add(row)
    kept = {row.job_id: scheduler.queue.order(row) for row in scheduler.queue}
    for row in rows[::2]:
        scheduler.remove(row.job_id)
    for row in rows[::2]:
        scheduler.add(replace(row, attempt=2))
    assert {row.job_id: scheduler.queue.order(row) for row in scheduler.queue} == kept
    for row in rows:
        scheduler.remove(row.job_id)
    assert not len(scheduler.queue)
    assert not list(scheduler.queue.needs())


def test_the_share_factor_is_as_slurm_has_it() -> None:
    """Two namespaces of weights 3 and 1 share 64 GPUs: 48 and 16 are fair."""
    shares = FairShare(Quotas(namespaces=(Namespace(name="a", weight=3), Namespace(name="b"))), HOUR)
    assert shares.factor("a", "anna", 64, 0.0) == 1.0
    shares.charge("a", "anna", 48, 0.0)
    shares.charge("b", "ben", 32, 0.0)
    assert shares.factor("a", "anna", 64, 0.0) == pytest.approx(0.5), "exactly what is fair"
    assert shares.factor("b", "ben", 64, 0.0) == pytest.approx(0.25), "twice as much"
    # A second user of b: 32 of 16 in the namespace, none of 8 for the user.
    assert shares.factor("b", "new", 64, 0.0) == pytest.approx(0.5 ** ((2 + 0) / 2))
    shares.charge("a", "anna", -48, HOUR)
    assert shares.factor("a", "anna", 64, 2 * HOUR) == pytest.approx(0.5 ** (12 / 48)), "half of 24 after the half-life"


def test_shares_count_beside_other_factors() -> None:
    """The share of someone who used the whole cluster is worth three hours less than that of a new user."""
    policy = Policy(order="multifactor", order_weights={"fair_share": 4.0, "shortest": 0.0})
    for ahead, first in ((2.9, "new"), (3.1, "old")):
        scheduler = cluster().hosts(1).scheduler(policy)
        scheduler.record_past_use(PastUseRow("default", "old", 16.0, -1e9, 0.0), 0.0)
        scheduler.add(job(8, name="old").of("default", "old").arrived(100 * HOUR).row)
        scheduler.add(job(8, name="new").of("default", "new").arrived((100 + ahead) * HOUR).row)
        shares = scheduler.shares
        gap = 4 * (shares.factor("default", "new", 8, 0.0) - shares.factor("default", "old", 8, 0.0))
        ((row, _),) = scheduler.decide(0.0).placements
        assert row.job_id == ("new" if ahead < gap else "old"), (first, gap)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"order": "longest"}, "there is no queue order 'longest'; there are: priority, fcfs"),
        ({"order_weights": {"beauty": 1}}, "no factor is called beauty; there are: age, fair_share"),
        ({"order_weights": {"age": 0}}, "age is above 0"),
        ({"order_weights": {"size": float("inf")}}, "finite"),
    ],
)
def test_an_order_that_is_wrong_is_refused(content: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read_policy(content)


PLUGIN = """
class Factor:
    name = "lucky"
    def __call__(self, row):
        {call}
"""


def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> Policy:
    module = tmp_path / "lucky.py"
    module.write_text(PLUGIN.format(call=call))
    install(monkeypatch, tmp_path, module, ORDER_FACTORS, lucky="Factor")
    return read_policy({"order": "multifactor", "order_weights": {"lucky": 10.0}})


def test_a_factor_of_another_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _installed(tmp_path, monkeypatch, "return float(row.user == 'lucky')")
    scheduler = cluster().hosts(1).scheduler(policy)
    scheduler.add(job(8, name="first").row)
    scheduler.add(job(8, name="second").of("default", "lucky").arrived(9 * HOUR).row)
    ((row, _),) = scheduler.decide(10 * HOUR).placements
    assert row.job_id == "second"


@pytest.mark.parametrize("call", ["return 1 / 0", "return float('nan')", "return 'much'"])
def test_a_factor_that_fails_is_named_and_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    policy = _installed(tmp_path, monkeypatch, call)
    with pytest.raises(PluginFailed) as raised:
        cluster().hosts(1).scheduler(policy).add(job().row)
    assert (raised.value.fault.kind, raised.value.fault.name) == ("order", "lucky")
    without = policy.without(raised.value.fault)
    scheduler = cluster().hosts(1).scheduler(without)
    scheduler.add(job().row)
    assert len(scheduler.decide(0.0).placements) == 1


def test_a_factor_that_is_not_installed_is_an_error_but_a_broken_one_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="no factor is called lucky"):
        read_policy({"order_weights": {"lucky": 1}}, do_without=is_broken)
    module = tmp_path / "lucky.py"
    module.write_text("class Factor:\n    name = 'other'\n")
    install(monkeypatch, tmp_path, module, ORDER_FACTORS, lucky="Factor")
    (fault,) = read_policy({"order_weights": {"lucky": 1}}, do_without=is_broken).plugin_faults
    assert (fault.kind, fault.name) == ("order", "lucky")
