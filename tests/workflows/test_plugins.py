"""Filters of other packages in the running platform: one that works, and one that fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from temporalio.client import Client

from gpu_platform.domain.jobs.placement import Reason, ReasonCode
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.events import read_events
from gpu_platform.store.leadership import leader
from service.operations import dry_runs
from tests.support.api_server import application, in_process
from tests.support.harness import Platform
from tests.support.plugins import EXAMPLES, FILTERS, install
from tests.support.waiting import eventually

Start = Callable[..., AbstractAsyncContextManager[Platform]]

FAILS = """
from pathlib import Path
from gpu_platform.scheduling.cluster.snapshot import ChangeKind
from gpu_platform.scheduling.placing.framework import FilterText

class Filter:
    name = "failing"
    can_change_by = ChangeKind.FACTS
    text = FilterText("strange", "something else", "wait")
    def applies_to(self, query):
        return True
    def __call__(self, query, snapshot, hosts):
        if Path({switch!r}).exists():
            raise KeyError("nothing")
        return query.all_gpus(snapshot, hosts)
"""


@pytest.fixture
def start(temporal: Client, sqlite_store: Store, tmp_path: Path) -> Start:
    def begin(machines: dict[str, str], **policy: Any) -> AbstractAsyncContextManager[Platform]:
        labels = {"kept": {"labels": {"whole": "yes"}}}
        return Platform.start(
            temporal, sqlite_store, tmp_path, machines, policy=policy, node_fields=lambda name: labels.get(name, {})
        )

    return begin


def shell(script: str, gpus: int) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": {"gpus_per_host": gpus}, "grace_s": 2})


def install_failing(monkeypatch: pytest.MonkeyPatch, site: Path) -> Path:
    """A filter that lets everything through until the file is there, and raises then. Returns the file."""
    module, switch = site / "failing.py", site / "fail"
    module.write_text(FAILS.format(switch=str(switch)))
    install(monkeypatch, site, module, FILTERS, failing="Filter")
    return switch


async def waits(platform: Platform, job_id: str) -> Reason:
    return await eventually(lambda: platform.job(job_id).reason, f"{job_id} to wait")


async def warnings_of(platform: Platform) -> list[str]:
    address = platform.client.service_client.config.target_host
    async with in_process(application(platform.store, address)) as http:
        return (await http.get("/readyz")).json()["warnings"]


def metric(plugin: str) -> float | None:
    return REGISTRY.get_sample_value("gpu_platform_scheduler_plugins_off", {"kind": "filter", "plugin": plugin})


async def test_the_example_filter_decides(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = EXAMPLES / "plugin-whole-hosts" / "whole_hosts.py"
    install(monkeypatch, tmp_path / "site", module, FILTERS, whole_hosts="WholeHosts")
    async with start({"kept": "dgx-h100", "open": "dgx-h100"}, filters=["whole_hosts"]) as platform:
        small = await platform.submit(shell("sleep 60", gpus=8 - 1))
        large = await platform.submit(shell("sleep 60", gpus=8))
        for job_id, host in ((small, "open"), (large, "kept")):
            ran = await platform.reaches(job_id, JobState.RUNNING)
            assert ran.placement is not None
            assert ran.placement.hosts == [host]
        await platform.signal(large, "kill")
        await platform.ends(large, JobState.CANCELLED)
        waiting = await platform.submit(shell("true", gpus=2))
        reason = await waits(platform, waiting)
        assert "1 given away only whole" in reason.message
        counts = [(count.code, count.filter) for count in reason.counts]
        assert counts == [(ReasonCode.BUSY, None), (ReasonCode.FILTER, "whole_hosts")]
        assert dry_runs.why(platform.store, waiting).counts == reason.counts
        assert await warnings_of(platform) == []
        await platform.signal(small, "kill")
        await platform.ends(waiting, JobState.COMPLETED)
        await platform.nothing_leaked()


@pytest.mark.long
async def test_a_filter_that_fails_is_switched_off_and_the_leader_goes_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = install_failing(monkeypatch, tmp_path)
    async with start({"a": "dgx-h100"}, filters=["failing"]) as platform:
        blocker = await platform.submit(shell("sleep 60", gpus=8))
        await platform.reaches(blocker, JobState.RUNNING)
        epoch = leader.current_epoch(platform.store)
        assert (leader.plugin_faults(platform.store), metric("failing")) == ([], None)

        fail.touch()
        waiting = await platform.submit(shell("true", gpus=1))
        reason = await waits(platform, waiting)
        assert "the filter plugin failing is switched off (KeyError: 'nothing')" in reason.message
        [fault] = leader.plugin_faults(platform.store)
        assert (fault.kind, fault.name) == ("filter", "failing")
        assert metric("failing") == 1
        [warning] = await warnings_of(platform)
        assert warning == fault.message
        told = [event for event in read_events(platform.store, 0) if event.kind == "scheduler.plugin_off"]
        assert [event.data["name"] for event in told] == ["failing"]
        dry_run = dry_runs.dry_run(platform.store, shell("true", gpus=8))
        assert dry_run.reason is not None
        assert "failing is switched off" in dry_run.reason.message

        await platform.signal(blocker, "kill")
        await platform.ends(waiting, JobState.COMPLETED)
        assert leader.current_epoch(platform.store) == epoch, "the leader that found it leads on"

        fail.unlink()
        await platform.change_leader()
        await platform.ends(await platform.submit(shell("true", gpus=1)), JobState.COMPLETED)
        assert (leader.plugin_faults(platform.store), metric("failing")) == ([], None)
        await platform.nothing_leaked()


async def test_a_filter_that_cannot_be_loaded_leaves_the_leader_alive(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "failing.py"
    module.write_text("raise OSError('no licence')")
    install(monkeypatch, tmp_path, module, FILTERS, failing="Filter")
    async with start({"a": "dgx-h100"}, filters=["failing"]) as platform:
        await platform.ends(await platform.submit(shell("true", gpus=1)), JobState.COMPLETED)
        [fault] = leader.plugin_faults(platform.store)
        assert fault.error == "OSError: no licence"
        assert await warnings_of(platform) == [fault.message]
