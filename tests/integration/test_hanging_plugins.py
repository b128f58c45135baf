"""A filter of another package never returns: the leader ends, and the next one places jobs without the filter."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.plugin import DOES_NOT_RETURN
from gpu_platform.domain.states import JobState
from tests.support.plugins import FILTERS, install
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

HANGS = """
import time
from pathlib import Path
from gpu_platform.scheduling.cluster.snapshot import ChangeKind
from gpu_platform.scheduling.placing.framework import FilterText

class Filter:
    name = "hanging"
    can_change_by = ChangeKind.FACTS
    text = FilterText("strange", "something else", "wait")
    def applies_to(self, query):
        while Path({stuck!r}).exists():
            time.sleep(0.1)
        return False
    def __call__(self, query, snapshot, hosts):
        return query.all_gpus(snapshot, hosts)
"""
IMPATIENT = """
import workers.scheduler.leader as leader
leader.STANDS_STILL_S = 3.0
import workers.process, workers.scheduler.main
workers.process.run_process(workers.scheduler.main.main())
"""


@pytest.mark.timeout(200)
async def test_the_next_leader_does_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, stuck = tmp_path / "site", tmp_path / "stuck"
    site.mkdir()
    stuck.touch()
    module = site / "hanging.py"
    module.write_text(HANGS.format(stuck=str(stuck)))
    install(monkeypatch, site, module, FILTERS, hanging="Filter")
    config = ClusterConfig(
        tmp_path / "state",
        nodes=(NodeSpec("a", "dgx-h100"),),
        ui=False,
        schedulers=1,
        settings={
            "PYTHONPATH": str(site),
            "GPU_PLATFORM_SCHEDULER__POLICY": '{"filters": ["hanging"]}',
        },
    )
    cluster = LocalCluster(config)
    [scheduler] = cluster.schedulers
    scheduler.argv = [sys.executable, "-c", IMPATIENT]
    one = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1))
    async with cluster, AsyncClient(cluster.api_urls) as client:
        job = await client.submit(one)
        assert (await client.wait(job.id, timeout_s=90)).state is JobState.COMPLETED
        [warning] = [warning for warning in (await client.ready()).warnings if "hanging" in warning]
        assert DOES_NOT_RETURN in warning
        assert "SIGHUP" in warning
        stuck.unlink()
        assert scheduler.pid is not None
        os.kill(scheduler.pid, signal.SIGHUP)

        async def is_tried_again() -> bool:
            return not any("hanging" in warning for warning in (await client.ready()).warnings)

        await eventually(is_tried_again, "the filter to be used again")
        job = await client.submit(one)
        assert (await client.wait(job.id, timeout_s=60)).state is JobState.COMPLETED
