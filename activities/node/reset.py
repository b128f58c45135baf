"""The step on a host that resets a GPU."""

from __future__ import annotations

from temporalio import activity

from activities.heartbeat import heartbeating
from gpu_platform.domain.errors import PlatformError
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.system.own_thread import in_own_thread
from gpu_platform.temporal.errors import final

RESET_NEEDS_OPERATOR = "ResetNeedsOperator"
"""The type of the failure of a reset that can never succeed, however often it is tried."""


class ResetActivities:
    """The host's part: resets its GPUs."""

    def __init__(self, worker: NodeWorker) -> None:
        self._worker = worker

    @activity.defn
    async def reset_gpu(self, gpu_uuid: str) -> None:
        """Reset and verify the GPU.

        Fails with ``ResetFailed`` if it does not work afterwards, and with ``ResetNeedsOperator`` if this machine
        cannot reset it alone.
        """
        try:
            await heartbeating(in_own_thread(lambda: self._reset(gpu_uuid), name="reset"))
        except PlatformError as error:
            kind = RESET_NEEDS_OPERATOR if error.details.get("needs_operator") else "ResetFailed"
            raise final(error.message, kind) from error

    def _reset(self, gpu_uuid: str) -> None:
        self._worker.reset_gpu(gpu_uuid)
        self._worker.verify_gpu(gpu_uuid)
