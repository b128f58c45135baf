"""The power limit of a job's GPUs, which the host sets and gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import RankLimits
from gpu_platform.node.accounting.power_cap import PowerCap
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from tests.support.hosts_rig import HostRig


def test_a_power_limit_holds_for_the_job_within_bounds_and_is_given_back(tmp_path: Path) -> None:
    host = HostRig(tmp_path)
    assert isinstance(host.nvml, SimulatedNvml)
    uuid = host.inventory.gpus[0].uuid
    handle = host.nvml.nvmlDeviceGetHandleByUUID(uuid)
    default = host.nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)

    def limit_w() -> int:
        return host.nvml.nvmlDeviceGetPowerManagementLimit(handle) // 1000

    stage = PowerCap(host.nvml, [uuid], host_limit_w=500)
    stage.recover([])
    assert limit_w() == 500
    for asked, got in ((300, 300), (50, 200), (600, 500)):
        plan = host.plan("true", limits=RankLimits(power_limit_w=asked))
        stage.prepare(plan)
        assert limit_w() == got
        stage.finish(plan)
        stage.finish(plan)
        assert limit_w() == 500
    unlimited = PowerCap(host.nvml, [uuid])
    unlimited.prepare(plan)
    unlimited.finish(plan)
    assert limit_w() * 1000 == default
    host.strike(0, lost=True)
    with pytest.raises(PreflightFailed, match="cannot limit the power"):
        stage.prepare(plan)
    stage.finish(plan)
    host.worker.close()
