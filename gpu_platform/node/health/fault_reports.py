"""Turns XIDs and conditions into fault reports: leaves out repeats and consequences, and decides what to do."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health.conditions import KEEPS_WORK_AWAY
from gpu_platform.node.health.fault_history import FaultHistory
from gpu_platform.node.health.fault_policy import COMPANION_MS, Condition, FaultPolicy
from gpu_platform.node.health.watched_gpu import WatchedGpu

log = structlog.get_logger(__name__)

CHANNEL_REMOVED = 45
"""XID 45: the driver reports it for every program that is killed while it computes."""
_XIDS_OF: dict[Condition, frozenset[int]] = {
    "gpu_lost": frozenset({79}),
    "ecc_uncorrectable": frozenset({48, 94, 95, 140}),
    "remap_failed": frozenset({64}),
    "remap_pending": frozenset({63}),
}
"""A condition and these XIDs are one fault when they come within ``COMPANION_MS``."""
_BURST_MS = 1000
"""The driver repeats an XID. On one GPU it is the same fault within this time."""


class FaultReports:
    """Turns XIDs and conditions into fault reports. Thread-safe per GPU.

    ``on_fault`` is called once for each fault, in the thread that saw it.
    """

    def __init__(
        self, policy: FaultPolicy, history: FaultHistory, *, host: str, on_fault: Callable[[FaultReport], None]
    ) -> None:
        self._policy = policy
        self._history = history
        self._host = host
        self._on_fault = on_fault
        self.excused_before_ms = 0
        """Resets before this time (Unix ms) do not count against the host."""

    def on_xid(self, gpu: WatchedGpu, xid: int, recovery_action: Callable[[], int], *, fatal: bool = False) -> None:
        """Take an XID from the event set or from the kernel's log. ``recovery_action`` asks the driver what it
        wants."""
        with gpu.lock:
            at_ms = now_ms()
            seen_ms = gpu.xids.get(xid, 0)
            gpu.xids[xid] = at_ms
            # NVML's events do not give the severity of an XID. The kernel's log may bring it a moment later.
            is_graver = fatal and self._policy.has_severity(xid) and xid not in gpu.fatal
            if is_graver:
                gpu.fatal.add(xid)
            elif (
                at_ms - seen_ms < _BURST_MS
            ):  # repeated by the driver, or seen in both the event set and the kernel's log
                return
            gpu.xid_counts[xid] = gpu.xid_counts.get(xid, 0) + 1
            if xid in self._policy.consequences and self._is_consequence(gpu, xid, at_ms):
                return
            if any(xid in _XIDS_OF.get(condition, ()) for condition in gpu.standing):  # type: ignore[call-overload]
                return
            self.report(gpu, xid, recovery_action=recovery_action(), fatal=fatal)

    def note(
        self, gpu: WatchedGpu, condition: Condition, holds: bool, detail: str = "", recovery_action: int = 0
    ) -> None:
        """Report a condition when it begins, and forget it when it ends."""
        with gpu.lock:
            if not holds and condition in gpu.standing:
                gpu.standing.discard(condition)
                self._history.clear(gpu.info.uuid, condition)
            elif holds and condition not in gpu.standing:
                gpu.standing.add(condition)
                if not self._is_reported_by_xid(gpu, condition, recovery_action):
                    self.report(gpu, condition, detail, recovery_action=recovery_action)

    def report(
        self,
        gpu: WatchedGpu,
        cause: int | Condition,
        detail: str = "",
        recovery_action: int = 0,
        fatal: bool = False,
    ) -> None:
        """Decide what to do about a new fault, deliver the report, and add it to the history."""
        at_ms = now_ms()
        uuid = gpu.info.uuid
        action = self._policy.action(
            cause, history=self._history.of(uuid), now_ms=at_ms, recovery_action=recovery_action, fatal=fatal
        )
        report = FaultReport(
            fault_id=self._history.next_id(uuid),
            host=self._host,
            gpu_uuid=uuid,
            gpu_index=gpu.info.index,
            xid=cause if isinstance(cause, int) else None,
            action=action,
            message=f"{self._policy.describe(cause)} on GPU {gpu.info.index} of {self._host}{detail}",
            at_ms=at_ms,
            blameless=cause in self._policy.no_fault_of_gpu,
        )
        try:
            self._on_fault(report)
        except Exception:
            log.exception("health.fault_not_delivered", gpu=uuid, fault=report.fault_id)
        # After the delivery: if the node worker restarts in between, it reports the same fault again under the same id.
        self._history.append(report, cause)

    def host_reason_against_work(self) -> str | None:
        """Why the host gets no new work: it needed so many resets that its GPUs are not to blame. None: it may work."""
        limit = self._policy.node_reset_limit
        if not limit:
            return None
        at_ms = now_ms()
        counted = (
            [fault for fault in faults if fault.at_ms > self.excused_before_ms]
            for faults in self._history.of_all().values()
        )
        resets = sum(self._policy.earlier_resets(faults, at_ms) for faults in counted)
        if resets < limit:
            return None
        hours = self._policy.escalation_window_ms / 3_600_000
        needed = f"GPUs of this host needed {resets} resets within {hours:g} h (limit {limit})"
        return f"{needed}: have the host inspected, then put it online"

    def _is_reported_by_xid(self, gpu: WatchedGpu, condition: Condition, recovery_action: int) -> bool:
        """True when an XID just before was the same fault, and its report healed whatever this condition needs."""
        at_ms = now_ms()
        xids = gpu.xids if condition == "recovery_asked" else _XIDS_OF.get(condition, ())
        recent = {xid for xid in xids if at_ms - gpu.xids.get(xid, 0) <= COMPANION_MS}
        history = self._history.of(gpu.info.uuid)
        needed = self._policy.action(condition, history=history, now_ms=at_ms, recovery_action=recovery_action)
        if condition not in KEEPS_WORK_AWAY or not needed.takes_gpu:
            return bool(recent)
        # Without a reset the GPU would be kept from work for ever: XID 63 is only watched.
        return any(past.cause in recent and FaultAction(past.action or "none").takes_gpu for past in history)

    def _is_consequence(self, gpu: WatchedGpu, xid: int, now: int) -> bool:
        """True if the XID follows from a kill by the platform, or from another fault of the same GPU just before."""
        killed_ms = gpu.killed_at_ms if xid == CHANNEL_REMOVED else 0
        others = [
            at_ms
            for other, at_ms in gpu.xids.items()
            if other != xid and (xid == CHANNEL_REMOVED or other not in self._policy.consequences)
        ]
        return now - max([killed_ms, *others]) <= COMPANION_MS


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
