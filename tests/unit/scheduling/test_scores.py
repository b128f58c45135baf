"""Each score alone decides as its name says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.scheduling.plugin_loading import load_scores
from gpu_platform.scheduling.plugins.gang import DomainWeights
from gpu_platform.scheduling.policy import DEFAULT_WEIGHTS, WEIGHTS, Policy, build_framework
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job

NOTHING = {"topology": 0.0, "bandwidth": 0.0, "strategy": 0.0}
PLUGIN = Path(__file__).parents[3] / "examples" / "plugin-quiet-hosts"


def only(score: str) -> Policy:
    return Policy(weights={**NOTHING, score: 1.0})


def hosts_of(scheduler: Scheduler, wanted: job) -> list[str]:
    scheduler.add(wanted.row)
    ((_, placement),) = scheduler.decide(0.0).placements
    return placement.hosts


def telemetry(machines: cluster, host: str, **values: int) -> list[GpuTelemetry]:
    return [GpuTelemetry(uuid=row.uuid, **values) for row in machines.gpu_rows.values() if row.host == host]


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_set_of_weights_works(name: str) -> None:
    assert hosts_of(cluster().hosts(2).scheduler(Policy(weights=WEIGHTS[name])), job(4)) == ["dgx-h100-0"]


def test_resources_takes_the_exact_fit() -> None:
    machines = cluster().hosts(3).busy("dgx-h100-1", 0, 1).busy("dgx-h100-2", 0, 1, 2)
    assert hosts_of(machines.scheduler(only("resources")), job(5)) == ["dgx-h100-2"]


def test_utilisation_takes_the_least_loaded_host() -> None:
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(only("utilisation"))
    scheduler.update_telemetry("dgx-h100-0", telemetry(machines, "dgx-h100-0", utilization_percent=50))
    assert hosts_of(scheduler, job()) == ["dgx-h100-1"]


def test_heat_spreads() -> None:
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(only("thermal"))
    scheduler.update_telemetry("dgx-h100-0", telemetry(machines, "dgx-h100-0", temperature_c=70))
    scheduler.update_telemetry("dgx-h100-1", telemetry(machines, "dgx-h100-1", temperature_c=50))
    assert hosts_of(scheduler, job()) == ["dgx-h100-1"]


def test_nothing_is_placed_above_the_limit_until_it_has_cooled() -> None:
    machines = cluster().hosts(1)
    scheduler = machines.scheduler(Policy(max_temperature_c=85))
    scheduler.update_telemetry("dgx-h100-0", telemetry(machines, "dgx-h100-0", temperature_c=86))
    scheduler.add(job(1, name="a").row)
    decision = scheduler.decide(0.0)
    (reason,) = decision.reasons.values()
    assert not decision.placements
    assert "1 too hot (best has 0 GPUs cool)" in reason.message
    assert reason.next_step == "GPUs must cool down"
    scheduler.update_telemetry("dgx-h100-0", telemetry(machines, "dgx-h100-0", temperature_c=85))
    assert len(scheduler.decide(1.0).placements) == 1


def test_without_a_limit_of_the_policy_only_the_hosts_limit_counts() -> None:
    machines = cluster().hosts(1)
    scheduler = machines.scheduler()
    scheduler.update_telemetry("dgx-h100-0", telemetry(machines, "dgx-h100-0", temperature_c=99))
    scheduler.add(job(1, name="a").row)
    assert len(scheduler.decide(0.0).placements) == 1


def test_small_changes_of_temperature_and_load_cost_nothing() -> None:
    machines = cluster().hosts(1)
    scheduler = machines.scheduler()
    scheduler.update_telemetry(
        "dgx-h100-0", telemetry(machines, "dgx-h100-0", temperature_c=50, utilization_percent=50)
    )
    before = scheduler.snapshot.version
    scheduler.update_telemetry(
        "dgx-h100-0", telemetry(machines, "dgx-h100-0", temperature_c=51, utilization_percent=52)
    )
    assert scheduler.snapshot.version == before


def test_round_robin_goes_round() -> None:
    scheduler = cluster().hosts(3).scheduler(only("round_robin"))
    assert sorted(hosts_of(scheduler, job())[0][-1] for _ in range(6)) == list("001122")


def test_history_decides_between_equals_by_default_and_not_against_packing() -> None:
    machines = cluster().host("a", leaf="slow").host("b", leaf="fast").host("c", leaf="fast")
    scheduler = machines.scheduler()
    for _ in range(10):
        scheduler.snapshot.remember_speed(["b"], 2.0)
    scheduler.add(job(4).row)
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["b"]
    machines.busy("a", 0, 1, 2, 3)
    scheduler = machines.scheduler()
    for _ in range(10):
        scheduler.snapshot.remember_speed(["b"], 2.0)
    scheduler.add(job(4).row)
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["a"], "it fills the host that works already"


def test_history_counts_a_tenth_of_a_domains_score_and_a_quarter_of_what_packing_counts_for_one_host() -> None:
    """Of domains: 40 % filled, 30 % connected, 20 % idle, 10 % fast. Where jobs ran twice as fast the term is full."""
    assert vars(DomainWeights()) == {"resources": 0.4, "topology": 0.3, "utilisation": 0.2, "history": 0.1}
    assert DEFAULT_WEIGHTS["history"] == DEFAULT_WEIGHTS["fragmentation"] / 4.0
    for wanted, weight in ((job(8, hosts=2), 0.1), (job(8), 0.25)):
        scheduler = cluster().hosts(2, leaf="usual").hosts(2, leaf="fast").scheduler()
        for _ in range(40):
            scheduler.record_speed(["dgx-h100-2"], 2.0)
        scheduler.add(wanted.row)
        [(_, placement)] = scheduler.decide(0.0).placements
        assert placement.hosts[0] == "dgx-h100-2"
        rows = placement.scores.rows
        assert (rows[0].parts["history"], rows[-1].parts["history"]) == (weight, weight / 2.0)


def test_history_prefers_where_jobs_ran_fast() -> None:
    machines = cluster().host("a", leaf="slow").host("b", leaf="fast").host("c", leaf="fast")
    scheduler = machines.scheduler(only("history"))
    scheduler.record_speed(["a"], 0.5)
    scheduler.record_speed(["c"], 1.5)
    assert hosts_of(scheduler, job()) == ["b"], "the same leaf and kind of GPU"


def test_fragmentation_breaks_what_is_broken() -> None:
    machines = cluster().hosts(3).busy("dgx-h100-0", 0, 1, 2, 3).busy("dgx-h100-1", 0)
    assert hosts_of(machines.scheduler(only("fragmentation")), job(1)) == ["dgx-h100-1"]
    assert hosts_of(machines.scheduler(only("fragmentation")), job(4)) == ["dgx-h100-0"]


def test_islands_are_left_whole_and_a_host_without_parts_is_none() -> None:
    """Three of four GPUs of a NUMA node break it. A host of one NUMA node has no island that could be broken."""
    machines = cluster().host("a").host("b").busy("a", 4, 5, 6, 7).busy("b", 0, 5, 6, 7)
    assert hosts_of(machines.scheduler(only("islands")), job(3)) == ["b"], "it leaves no GPU of its island"
    row = machines.host("c").busy("b").host_rows["c"]
    one_node = [gpu.model_copy(update={"numa_node": 0, "socket": 0}) for gpu in row.inventory.gpus]
    machines.host_rows["c"] = replace(row, inventory=row.inventory.model_copy(update={"gpus": one_node}))
    assert hosts_of(machines.scheduler(only("islands")), job(1)) == ["c"]
    assert hosts_of(machines.scheduler(only("strategy")), job(1)) == ["a"]


def test_by_default_a_job_that_wants_to_be_spread_goes_to_the_emptiest_host_whatever_was_fast() -> None:
    machines = cluster().host("a", leaf="fast").host("b", leaf="slow").busy("a", 0, 1, 2, 3)
    scheduler = machines.scheduler()
    for _ in range(20):
        scheduler.record_speed(["a"], 2.0)
    assert hosts_of(scheduler, job(2).spread()) == ["b"]
    assert hosts_of(scheduler, job(2)) == ["a"]


def test_weights_that_a_policy_names_mean_what_they_meant_before_the_default_had_the_score_fragmentation() -> None:
    named = {score.name: weight for score, weight in build_framework(Policy(weights={"thermal": 3.0})).scores}
    assert named == {"topology": 20.0, "bandwidth": 2.0, "strategy": 1.0, "history": 0.25, "thermal": 3.0}
    assert build_framework(Policy()).scores[-1][0].name == "fragmentation"


def test_jobs_that_want_to_be_spread_are_not_packed_by_fragmentation() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-1", 0)
    policy = Policy(weights={**WEIGHTS["fragmentation"], "topology": 0.0, "bandwidth": 0.0})
    assert hosts_of(machines.scheduler(policy), job(1).spread()) == ["dgx-h100-0"]
    assert hosts_of(machines.scheduler(policy), job(1)) == ["dgx-h100-1"]


def test_a_gang_goes_where_domains_are_idle_and_were_fast() -> None:
    machines = cluster().hosts(2, leaf="a").hosts(2, leaf="b").hosts(2, leaf="c")
    scheduler = machines.scheduler()
    for host in ("dgx-h100-0", "dgx-h100-1"):
        scheduler.update_telemetry(host, telemetry(machines, host, utilization_percent=80))
    scheduler.record_speed(["dgx-h100-4"], 2.0)
    assert hosts_of(scheduler, job(8, hosts=2)) == ["dgx-h100-4", "dgx-h100-5"]


def test_a_plugin_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = tmp_path / "quiet_hosts-0.1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet-hosts\nVersion: 0.1.0\n")
    (announced / "entry_points.txt").write_text("[gpu_platform.plugins]\nquiet_hosts = quiet_hosts:QuietHosts\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(PLUGIN)
    plugins, faults = load_scores(["quiet_hosts"])
    assert faults == []
    monkeypatch.delitem(sys.modules, "quiet_hosts")
    machines = cluster().host("a", quiet="no").host("b")
    policy = Policy(weights={"quiet_hosts": 5.0}, plugins=plugins)
    assert hosts_of(machines.scheduler(policy), job()) == ["b"]
    assert hosts_of(machines.scheduler(Policy(plugins=plugins)), job()) == ["a"], "without a weight it does not count"
