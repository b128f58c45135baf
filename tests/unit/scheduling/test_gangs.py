"""Gangs of groups and totals: all or none, close together, on as few hosts as can be."""

from __future__ import annotations

from gpu_platform.domain.jobs.placement import Placement, TopologyLevel, WaitCode
from gpu_platform.domain.placing.quota import Namespace, Quotas
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job


def placed(scheduler: Scheduler, *jobs: job) -> dict[str, Placement]:
    for one in jobs:
        scheduler.add(one.row)
    return {row.job_id: placement for row, placement in scheduler.decide(0.0).placements}


def shape(placement: Placement) -> list[tuple[str, int]]:
    return [(part.host, len(part.gpu_uuids)) for part in placement.slices]


def why(scheduler: Scheduler, wanted: job) -> str:
    row = scheduler.queue.get(wanted.row.job_id)
    assert row is not None
    return scheduler.reasons[row.class_key].message


def test_a_total_prefers_one_host() -> None:
    wanted = job(name="j").total(6).across_sockets()
    found = placed(cluster().hosts(3, "dgx-h100").scheduler(), wanted)
    assert shape(found["j"]) == [("dgx-h100-0", 6)]


def test_a_total_splits_over_the_fewest_hosts_of_one_leaf() -> None:
    machines = cluster().hosts(2, "dgx-h100", leaf="a").hosts(2, "dgx-h100", leaf="b").busy("dgx-h100-0", *range(6))
    found = placed(machines.scheduler(), job(name="j").total(12))
    assert shape(found["j"]) == [("dgx-h100-2", 8), ("dgx-h100-3", 4)]
    assert found["j"].level is TopologyLevel.LEAF


def test_a_total_is_uneven_where_it_must() -> None:
    machines = cluster().hosts(3, "dgx-h100", leaf="a").busy("dgx-h100-0", 0, 1, 2).busy("dgx-h100-1", 0)
    found = placed(machines.scheduler(), job(name="j").total(20))
    assert sorted(shape(found["j"])) == [("dgx-h100-0", 5), ("dgx-h100-1", 7), ("dgx-h100-2", 8)]


def test_a_total_never_leaves_a_required_level() -> None:
    machines = cluster().hosts(1, "dgx-h100", leaf="a").hosts(1, "dgx-h100", leaf="b")
    scheduler = machines.scheduler()
    wanted = job(name="j").total(12).requires("leaf")
    assert placed(scheduler, wanted) == {}
    row = scheduler.queue.get("j")
    assert row is not None
    reason = scheduler.reasons[row.class_key]
    assert reason.code is WaitCode.NEVER_FITS
    assert "12 GPUs in all under one leaf" in reason.message
    assert "at most 8 GPUs" in reason.next_step


def test_a_total_inside_one_host_is_not_split() -> None:
    scheduler = cluster().hosts(2, "dgx-h100").busy("dgx-h100-0", 0, 1).busy("dgx-h100-1", 0, 1).scheduler()
    assert placed(scheduler, job(name="j").total(8).across_sockets().requires("host")) == {}
    assert "8 GPUs in all of one host" in why(scheduler, job(name="j"))


def test_groups_are_placed_together_and_named() -> None:
    machines = cluster().hosts(2, "dgx-h100", leaf="a").hosts(2, "l40s-4x-dual-socket", leaf="a").hosts(2, leaf="b")
    wanted = job(name="j").groups(trainer=job(gpus=8, hosts=2), judge=job(gpus=2).needs(model="L40S"))
    found = placed(machines.scheduler(), wanted)["j"]
    assert [(part.group, part.host[:4], len(part.gpu_uuids)) for part in found.slices] == [
        ("trainer", "dgx-", 8),
        ("trainer", "dgx-", 8),
        ("judge", "l40s", 2),
    ]
    assert found.level is TopologyLevel.LEAF
    assert "trainer: 8 GPUs" in found.why
    assert "judge: 2 GPUs" in found.why


def test_groups_may_share_a_host() -> None:
    wanted = job(name="j").groups(trainer=job(gpus=4), judge=job(gpus=1))
    found = placed(cluster().hosts(2, "dgx-h100").scheduler(), wanted)["j"]
    assert found.hosts == ["dgx-h100-0"]
    assert len(set(found.gpu_uuids)) == 5
    assert found.level is TopologyLevel.HOST


def test_nothing_is_held_when_one_group_has_no_place() -> None:
    machines = cluster().hosts(2, "dgx-h100")
    scheduler = machines.scheduler()
    wanted = job(name="j").groups(trainer=job(gpus=8), judge=job(gpus=2).needs(model="A100"))
    assert placed(scheduler, wanted) == {}
    assert not scheduler.snapshot.held.any()
    row = scheduler.queue.get("j")
    assert row is not None
    reason = scheduler.reasons[row.class_key]
    assert reason.code is WaitCode.NEVER_FITS
    assert reason.message.startswith("group judge needs 2 GPUs (A100)")


def test_groups_that_want_the_same_gpus_are_told_so() -> None:
    machines = cluster().hosts(2, "dgx-h100").busy("dgx-h100-1", 0)
    scheduler = machines.scheduler()
    wanted = job(name="j").groups(a=job(gpus=8), b=job(gpus=8))
    assert placed(scheduler, wanted) == {}
    assert "not all at once" in why(scheduler, wanted)
    scheduler.upsert_gpus(machines.free("dgx-h100-1").gpu_rows.values())
    assert scheduler.decide(1.0).placements


def test_a_group_does_not_take_what_only_another_can_use() -> None:
    machines = cluster().host("x", "a100-pcie-4x-one-bridge").host("y", "l40s-4x-dual-socket")
    big, old = job(gpus=2).needs(model="L40S"), job(gpus=2).needs(model="A100")
    wanted = job(name="j").groups(any=job(gpus=2), big=big, old=old)
    found = placed(machines.scheduler(), wanted)
    assert {(p.group, p.host) for p in found["j"].slices} >= {("big", "y"), ("old", "x")}


def test_a_gang_of_groups_gets_a_date_and_nobody_delays_it() -> None:
    machines = cluster().hosts(2, "dgx-h100")
    scheduler = machines.scheduler()
    first = placed(scheduler, job(gpus=8, name="first").lasting(100.0))
    machines.busy(first["first"].hosts[0])
    scheduler.upsert_gpus(machines.gpu_rows.values())
    scheduler.confirm("first", 1)
    wanted = job(name="j").groups(a=job(gpus=8), b=job(gpus=8)).priority(5)
    found = placed(scheduler, wanted, job(gpus=1, name="long").lasting(500.0), job(gpus=1, name="short").lasting(50.0))
    assert list(found) == ["short"]
    row = scheduler.queue.get("j")
    assert row is not None
    assert scheduler.reasons[row.class_key].starts_by == 100.0


def test_a_quota_counts_the_whole_gang() -> None:
    quotas = Quotas(namespaces=(Namespace(name="n", limit_gpus=9),))
    scheduler = cluster().hosts(2, "dgx-h100").scheduler(Policy(quotas=quotas))
    wanted = job(name="j").groups(a=job(gpus=8), b=job(gpus=2)).of("n")
    assert placed(scheduler, wanted) == {}
    assert "at most 9" in why(scheduler, wanted)


def test_ranks_get_the_best_connected_hosts_and_the_spare_is_the_left_over() -> None:
    machines = cluster().host("a", "dgx-1v", leaf="l2").host("b", leaf="l1").host("c", leaf="l1").host("d", leaf="l3")
    scheduler = machines.scheduler()
    scheduler.add(job(gpus=8, hosts=3, name="two-and-a-spare").across_sockets().row)
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["b", "c", "d"]
    demo = cluster().host("a", leaf="l1").host("b", leaf="l1").host("0", "dgx-1v", leaf="l2")
    scheduler = demo.scheduler()
    scheduler.add(job(gpus=8, hosts=3).across_sockets().row)
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["a", "b", "0"], "the other model under another leaf is the spare"


def test_an_earlier_group_leaves_a_host_that_a_later_group_needs() -> None:
    """Hosts of one leaf are taken first. Here that leaves only one host for the other group."""
    machine = "l40s-4x-dual-socket"
    machines = cluster().host("h0", machine, leaf="l0").host("h1", machine, leaf="l1").host("h2", machine, leaf="l0")
    machines.busy("h0", 0, 1).busy("h1", 0).busy("h2", 2, 3)
    found = placed(machines.scheduler(), job(name="j").groups(a=job(gpus=1, hosts=2), b=job(gpus=2, hosts=2)))
    assert [slices for slices in sorted(shape(found["j"])) if slices[0] == "h1"] == [("h1", 1), ("h1", 2)]
    assert sorted(size for _, size in shape(found["j"])) == [1, 1, 2, 2]
