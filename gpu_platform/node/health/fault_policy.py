"""What to do about a fault: the policy table (``xid_policy.yaml``, or an operator's file), and how it is read.

Order of decision: the driver's own recovery action, then the table, then how often the GPU had the same fault
lately, then how often it was reset: a fault that resets did not heal needs a stronger action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.faults import FaultAction

COMPANION_MS = 30_000
"""Faults of one GPU within this time count as one incident."""

Condition = Literal[
    "gpu_lost",
    "reset_required",
    "recovery_asked",
    "ecc_uncorrectable",
    "ecc_correctable",
    "sram_threshold",
    "remap_pending",
    "remap_failed",
    "remap_exhausted",
    "pages_pending",
    "repair_pending",
    "nvlink_down",
    "nvlink_errors",
    "fabric_failed",
    "pcie_narrow",
    "pcie_replays",
    "job_hangs",
]
"""A fault that shows without an XID, in NVML or in a job."""


class FaultRule(BaseModel):
    """The action of one XID or condition.

    ``do`` is the action. ``then`` replaces it from the ``times``-th fault on the same GPU within the escalation window.
    ``fatal`` replaces it if the driver calls the fault fatal (NVLink 5 XIDs say ``Fatal`` or ``Nonfatal`` in the
    kernel's log).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    do: FaultAction
    times: Annotated[int, Field(ge=2)] | None = None
    then: FaultAction | None = None
    fatal: FaultAction | None = None


def _as_rule(value: object) -> object:
    return {"do": value} if isinstance(value, str) else value


RuleField = Annotated[FaultRule, BeforeValidator(_as_rule)]


class _Shipped(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    kind: str = Field(alias="class")
    vendor: RuleField
    platform: RuleField


class _ShippedTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    sources: list[str]
    xids: dict[int, _Shipped]
    unknown: _Shipped
    conditions: dict[Condition, _Shipped]
    recovery_actions: dict[int, FaultAction]
    reset_escalation: dict[int, FaultAction]
    escalation_window_h: float
    ecc_correctable_threshold: int
    nvlink_error_threshold: int
    pcie_replay_threshold: int
    node_reset_limit: int


class _OperatorFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    extends: Literal["platform", "vendor"] = "platform"
    xids: dict[int, RuleField] = {}
    unknown: RuleField | None = None
    conditions: dict[Condition, RuleField] = {}
    recovery_actions: dict[int, FaultAction] = {}
    reset_escalation: dict[Annotated[int, Field(ge=2)], FaultAction] | None = None
    escalation_window_h: Annotated[float, Field(gt=0)] | None = None
    ecc_correctable_threshold: Annotated[int, Field(ge=1)] | None = None
    nvlink_error_threshold: Annotated[int, Field(ge=1)] | None = None
    pcie_replay_threshold: Annotated[int, Field(ge=1)] | None = None
    node_reset_limit: Annotated[int, Field(ge=0)] | None = None


@dataclass(frozen=True)
class PastFault:
    """A fault in the history: XID or condition, when (Unix ms), and what was done."""

    cause: int | str
    at_ms: int
    action: str | None = None


@dataclass(frozen=True)
class FaultPolicy:
    """The table from XIDs and conditions to fault actions. Built by :meth:`load`."""

    name: str
    rules: dict[int | str, FaultRule]
    """XID or condition -> its rule."""
    names: dict[int | str, str]
    unknown: FaultRule
    recovery_actions: dict[int, FaultAction]
    reset_escalation: dict[int, FaultAction]
    """n -> what is done instead of the n-th reset of one GPU within the escalation window. Empty: it is always
    reset."""
    no_fault_of_gpu: frozenset[int | str]
    """Faults that a program causes. Resets for them do not escalate: one bad job must not take GPUs out of service."""
    consequences: frozenset[int | str]
    """XIDs that follow from other faults. They count only if no other fault came with them."""
    escalation_window_ms: float
    thresholds: dict[Condition, int]
    """Condition -> how many new errors within one report make it hold."""
    node_reset_limit: int
    """After this many resets on one host within the escalation window the host gets no new work. 0: no such limit."""

    @classmethod
    def load(cls, name_or_path: str) -> Self:
        """``platform``, ``vendor``, or an operator's YAML file. Raises :class:`InvalidRequest` for a bad file."""
        table = _shipped_table()
        if name_or_path in ("platform", "vendor"):
            own = _OperatorFile(extends=name_or_path)  # type: ignore[arg-type]
        else:
            own = _read_operator_file(Path(name_or_path))
        shipped: dict[int | str, _Shipped] = {**table.xids, **table.conditions}
        return cls(
            name=name_or_path,
            rules={cause: getattr(entry, own.extends) for cause, entry in shipped.items()} | own.xids | own.conditions,
            names={cause: entry.what for cause, entry in shipped.items()},
            unknown=own.unknown or getattr(table.unknown, own.extends),
            recovery_actions=table.recovery_actions | own.recovery_actions,
            reset_escalation=table.reset_escalation if own.reset_escalation is None else own.reset_escalation,
            no_fault_of_gpu=frozenset(cause for cause, entry in shipped.items() if entry.kind == "app"),
            consequences=frozenset(cause for cause, entry in shipped.items() if entry.kind == "sympathetic"),
            escalation_window_ms=(own.escalation_window_h or table.escalation_window_h) * 3_600_000,
            thresholds={
                "ecc_correctable": own.ecc_correctable_threshold or table.ecc_correctable_threshold,
                "nvlink_errors": own.nvlink_error_threshold or table.nvlink_error_threshold,
                "pcie_replays": own.pcie_replay_threshold or table.pcie_replay_threshold,
            },
            node_reset_limit=table.node_reset_limit if own.node_reset_limit is None else own.node_reset_limit,
        )

    def action(
        self,
        cause: int | Condition,
        *,
        history: Sequence[PastFault] = (),
        now_ms: int = 0,
        recovery_action: int = 0,
        fatal: bool = False,
    ) -> FaultAction:
        """What to do now about ``cause`` (an XID or a condition) on a GPU with this ``history``.

        ``history`` holds earlier faults of the same GPU, without this one. ``recovery_action`` is what the driver asks
        for, ``NVML_GPU_RECOVERY_ACTION_…``. ``fatal``: the driver's log line calls the fault fatal.
        """
        action = self._first_action(cause, history, now_ms, recovery_action, fatal)
        if action is FaultAction.RESET and cause not in self.no_fault_of_gpu:
            times = 1 + self.earlier_resets(history, now_ms)
            steps = [step for step in self.reset_escalation if step <= times]
            return self.reset_escalation[max(steps)] if steps else action
        return action

    def earlier_resets(self, history: Sequence[PastFault], now_ms: int) -> int:
        """How many earlier incidents needed more than a restart of the job. Faults within ``COMPANION_MS`` are one
        incident."""
        grave = (FaultAction.RESET, FaultAction.REBOOT, FaultAction.SERVICE)
        times = sorted(
            past.at_ms for past in history if past.action in grave and past.cause not in self.no_fault_of_gpu
        )
        times = [at for at in times if at >= now_ms - self.escalation_window_ms]
        return sum(1 for at, following in pairwise([*times, now_ms]) if following - at > COMPANION_MS)

    def has_severity(self, cause: int | str) -> bool:
        """True if the rule depends on the severity that the kernel's log gives."""
        return self.rules.get(cause, self.unknown).fatal is not None

    def _first_action(
        self, cause: int | Condition, history: Sequence[PastFault], now_ms: int, recovery_action: int, fatal: bool
    ) -> FaultAction:
        if recovery_action in self.recovery_actions:
            return self.recovery_actions[recovery_action]
        rule = self.rules.get(cause, self.unknown)
        if fatal and rule.fatal is not None:
            return rule.fatal
        if rule.times is None or rule.then is None:
            return rule.do
        since = now_ms - self.escalation_window_ms
        times = 1 + sum(1 for past in history if past.cause == cause and past.at_ms >= since)
        return rule.then if times >= rule.times else rule.do

    def describe(self, cause: int | str) -> str:
        """The fault in words, e.g. ``XID 31 (MMU page fault)``."""
        if isinstance(cause, int):
            return f"XID {cause} ({self.names.get(cause, 'unknown')})"
        return self.names[cause]


@cache
def _shipped_table() -> _ShippedTable:
    return _ShippedTable.model_validate(
        yaml.safe_load((resources.files("gpu_platform.node.health") / "xid_policy.yaml").read_text())
    )


def _read_operator_file(path: Path) -> _OperatorFile:
    try:
        data: Any = yaml.safe_load(path.read_text())
        return _OperatorFile.model_validate(data or {})
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InvalidRequest(
            f"the fault policy {str(path)!r} cannot be used (it is 'platform', 'vendor', or a YAML file): {error}"
        ) from error
