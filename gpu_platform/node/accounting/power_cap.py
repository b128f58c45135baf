"""The power limit of GPUs: a job's while it runs, else the host's, else the board's default.

NVML: ``nvmlDeviceSetPowerManagementLimit`` (milliwatts; needs root), within
``nvmlDeviceGetPowerManagementLimitConstraints``.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.stages import Stage

log = structlog.get_logger(__name__)


class PowerCap(Stage):
    """Sets the power limit of a job on its GPUs, in watts.

    ``host_limit_w`` is the limit of every GPU of the host; a job's own limit cannot exceed it.
    """

    def __init__(self, nvml: NvmlLibrary, uuids: Sequence[str], host_limit_w: int | None = None) -> None:
        self._nvml = nvml
        self._uuids = uuids
        self._host_limit_w = host_limit_w

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Set the host's power limit on every GPU that no open attempt holds."""
        held = {uuid for plan in attempts for uuid in plan.gpu_uuids}
        if self._host_limit_w is not None:
            for uuid in self._uuids:
                if uuid not in held:
                    self._restore(uuid)

    def prepare(self, plan: HostPlan) -> None:
        """Set the job's power limit on its GPUs. Raises :class:`PreflightFailed` if that cannot be done."""
        wanted = plan.limits.power_limit_w
        if wanted is None:
            return
        if plan.shares:
            raise PreflightFailed(
                "a power limit needs whole GPUs, and this job has shares of them", kind=blame(FailureCause.REQUEST)
            )
        for uuid in plan.gpu_uuids:
            try:
                self._set(uuid, min(wanted, self._host_limit_w or wanted))
            except self._nvml.NVMLError as error:
                raise PreflightFailed(
                    f"{plan.host} cannot limit the power of GPU {uuid} to {wanted} W ({error}): the node worker "
                    "must run as root, and the GPU must support it",
                    kind=blame(FailureCause.GPU_UNFIT),
                    gpu_uuid=uuid,
                ) from None

    def finish(self, plan: HostPlan) -> None:
        """Set the host's power limit on the GPUs again, or the board's default."""
        if plan.limits.power_limit_w is not None and not plan.shares:
            for uuid in plan.gpu_uuids:
                self._restore(uuid)

    def _restore(self, uuid: str) -> None:
        """Set the host's limit again. A GPU that cannot be set now (lost, being reset) returns with its board's
        default."""
        try:
            self._set(uuid, self._host_limit_w)
        except self._nvml.NVMLError as error:
            log.warning("power.not_restored", gpu=uuid, error=str(error))

    def _set(self, uuid: str, limit_w: int | None) -> None:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if limit_w is None:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
            return
        lowest, highest = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        limit_mw = max(lowest, min(limit_w * 1000, highest))
        if limit_mw != limit_w * 1000:
            log.warning("power.bounded", gpu=uuid, asked_w=limit_w, set_w=limit_mw // 1000)
        nvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
