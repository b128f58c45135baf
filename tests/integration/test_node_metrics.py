"""What Prometheus gets from a node worker, in its own format, and what is gone when a job is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpu_platform.disk_room import DiskRoom, kept_by_starts
from gpu_platform.domain.hosts.lease_protocol import HostLease, LeaseTimes
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.accounting.counters import ProcessTable
from gpu_platform.node.system import paths
from tests.support import prometheus
from tests.support.hosts_rig import HostRig
from workers.node.lease_metrics import LeaseMetrics
from workers.node.metrics import NodeMetrics
from workers.node.services import Services

DOCUMENTED = Path(__file__).parents[2] / "docs/reference/metrics.md"


class Scraped:
    def __init__(self, tmp_path: Path) -> None:
        self.accountant = Accountant(paths.node_dir(tmp_path.resolve(), "box"))
        self.host = HostRig(tmp_path, stages=[self.accountant])
        self.monitor = self.host.monitor(lambda fault: None)
        self.monitor.observe_with(self.accountant)
        self.registry = CollectorRegistry()
        self.registry.register(
            NodeMetrics(self.monitor, self.accountant, lambda: DiskRoom.of(tmp_path, kept_by_starts(7)))
        )
        lease = HostLease.begin("box", LeaseTimes.of(10.0), 0.0)
        keeper = SimpleNamespace(state=lease, services=Services(["http://127.0.0.1:8700"]))
        self.registry.register(LeaseMetrics(cast(Any, keeper)))

    def text(self) -> str:
        self.monitor.poll_once()
        for attempt in self.accountant.live():
            attempt.sample(ProcessTable())
        return generate_latest(self.registry).decode()

    def series(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Name -> values of its labels, in the order of their names -> value."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = (
                    sample.value
                )
        return found


async def test_gpus_and_ranks_have_series_that_end_with_the_job(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    host = scraped.host
    first = host.inventory.gpus[0].uuid
    host.strike(0, corrected_ecc=3, nvlink_errors=7, clock_reasons=0x40, utilization_percent=50)
    host.strike(1, lost=True)
    scraped.monitor._faults.on_xid(scraped.monitor._gpus[2], 13, lambda: 0)
    plan = host.plan("sleep", "600", ranks=1)
    host.launch(plan)
    scraped.text()
    series = scraped.series()
    assert series["gpu_platform_gpu_utilization_ratio"]["0", first] == 0.5
    assert series["gpu_platform_gpu_ecc_errors_total"]["0", "corrected", first] == 3
    assert series["gpu_platform_gpu_nvlink_errors_total"]["0", first] == 7
    assert series["gpu_platform_gpu_throttled"]["0", "hw_thermal", first] == 1
    assert series["gpu_platform_gpu_power_limit_watts"]["0", first] == 700
    assert len(series["gpu_platform_gpu_temperature_celsius"]) == 7
    assert sum(series["gpu_platform_gpu_up"].values()) == 7
    assert sum(series["gpu_platform_gpu_degraded"].values()) == 1
    assert [labels[2] for labels in series["gpu_platform_gpu_xids_total"]] == ["13"]
    rank = ("1", plan.key.job_id, "0")
    assert series["gpu_platform_gpu_job"] == {("1", "0", plan.key.job_id, first): 1}
    assert series["gpu_platform_rank_memory_bytes"][rank] > 0
    assert series["gpu_platform_rank_gpu_seconds_total"][rank] > 0
    assert series["gpu_platform_host_disk_reserve_bytes"] == {(): 7 << 20}
    assert series["gpu_platform_host_disk_free_bytes"][()] < series["gpu_platform_host_disk_size_bytes"][()]
    await host.stop(plan.key)
    assert not [name for name, values in scraped.series().items() if "rank" in name and values]
    host.worker.close()


async def test_an_ecc_error_is_counted_on_after_the_reset_that_follows_it(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    first = scraped.host.inventory.gpus[0].uuid
    counted: list[float] = []
    for condition in ({"uncorrected_ecc": 1}, {"clear": True}, {"uncorrected_ecc": 2}):
        scraped.host.strike(0, **condition)
        counted.append(scraped.series()["gpu_platform_gpu_ecc_errors_total"]["0", "uncorrected", first])
    assert counted == [1, 1, 3]
    scraped.host.worker.close()


async def test_every_metric_is_documented_and_nothing_else_and_promtool_finds_no_fault(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    plan = scraped.host.plan("sleep", "600")
    scraped.host.launch(plan)
    scraped.monitor._faults.on_xid(scraped.monitor._gpus[2], 13, lambda: 0)
    text = scraped.text()
    names = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    documented = set(re.findall(r"^\| `(gpu_platform_(?:gpu|rank|host)_\w+)`", DOCUMENTED.read_text(), re.MULTILINE))
    assert names == documented
    rows = re.findall(r"^\| `(\w+)` \| ?([\w, ]*?) ?\|", DOCUMENTED.read_text(), re.MULTILINE)
    labels = {name: {label for label in listed.split(", ") if label.strip()} for name, listed in rows}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.name: set(sample.labels) for sample in samples} == {one.name: labels[one.name] for one in samples}
    if prometheus.tool("promtool"):
        await asyncio.to_thread(prometheus.run, "promtool", "check", "metrics", text=text)
    await scraped.host.stop(plan.key)
    scraped.host.worker.close()
