"""The models of answers, imported when the first of them is needed: most take long, and a command needs few.

``models.Job`` is :class:`gpu_platform.domain.jobs.job.Job`, and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_platform.client.wire import (
        CheckpointAsked as CheckpointAsked,
    )
    from gpu_platform.client.wire import (
        CheckpointRoot as CheckpointRoot,
    )
    from gpu_platform.client.wire import (
        Clock as Clock,
    )
    from gpu_platform.client.wire import (
        DryRun as DryRun,
    )
    from gpu_platform.client.wire import (
        Health as Health,
    )
    from gpu_platform.client.wire import (
        LogChunk as LogChunk,
    )
    from gpu_platform.client.wire import (
        Page as Page,
    )
    from gpu_platform.client.wire import (
        Problem as Problem,
    )
    from gpu_platform.domain.access.enrollment import Enrollment as Enrollment
    from gpu_platform.domain.access.secrets import SecretInfo as SecretInfo
    from gpu_platform.domain.access.tokens import (
        LoginInfo as LoginInfo,
    )
    from gpu_platform.domain.access.tokens import (
        NewToken as NewToken,
    )
    from gpu_platform.domain.access.tokens import (
        TokenInfo as TokenInfo,
    )
    from gpu_platform.domain.access.tokens import (
        WhoAmI as WhoAmI,
    )
    from gpu_platform.domain.audit import AuditRecord as AuditRecord
    from gpu_platform.domain.cluster_report import ClusterReport as ClusterReport
    from gpu_platform.domain.events import Event as Event
    from gpu_platform.domain.hosts.gpu import (
        ClusterCounts as ClusterCounts,
    )
    from gpu_platform.domain.hosts.gpu import (
        Gpu as Gpu,
    )
    from gpu_platform.domain.hosts.gpu import (
        GpuHealth as GpuHealth,
    )
    from gpu_platform.domain.hosts.gpu import (
        Host as Host,
    )
    from gpu_platform.domain.hosts.remediation import RemediationStatus as RemediationStatus
    from gpu_platform.domain.hosts.remediation import ServiceCase as ServiceCase
    from gpu_platform.domain.hosts.samples import MetricsHistory as MetricsHistory
    from gpu_platform.domain.jobs.array import Array as Array
    from gpu_platform.domain.jobs.checkpoint import CheckpointInfo as CheckpointInfo
    from gpu_platform.domain.jobs.element_changes import ArrayChanged as ArrayChanged
    from gpu_platform.domain.jobs.exec import (
        ExecAttached as ExecAttached,
    )
    from gpu_platform.domain.jobs.exec import (
        ExecChunk as ExecChunk,
    )
    from gpu_platform.domain.jobs.exec import (
        ExecInfo as ExecInfo,
    )
    from gpu_platform.domain.jobs.exec import (
        ExecReceived as ExecReceived,
    )
    from gpu_platform.domain.jobs.exec import (
        ExecSession as ExecSession,
    )
    from gpu_platform.domain.jobs.job import Job as Job
    from gpu_platform.domain.jobs.job import QueueEntry as QueueEntry
    from gpu_platform.domain.jobs.placement import Reason as Reason
    from gpu_platform.domain.jobs.schedule import Schedule as Schedule
    from gpu_platform.domain.jobs.uploads import Upload as Upload
    from gpu_platform.domain.jobs.usage import JobUsage as JobUsage
    from gpu_platform.domain.jobs.usage import UsageReport as UsageReport
    from gpu_platform.domain.notifications import Delivery as Delivery
    from gpu_platform.domain.notifications import ShownTarget as ShownTarget
    from gpu_platform.domain.pipelines.pipeline import Pipeline as Pipeline
    from gpu_platform.domain.pipelines.pipeline import PipelineState as PipelineState
    from gpu_platform.domain.placing.cluster_state import ClusterState as ClusterState
    from gpu_platform.domain.placing.quota import QuotaUse as QuotaUse
    from gpu_platform.domain.placing.what_if import WhatIf as WhatIf
    from gpu_platform.domain.windows import Window as Window

_HOMES = {
    "gpu_platform.client.wire": (
        "CheckpointAsked",
        "CheckpointRoot",
        "Clock",
        "DryRun",
        "Health",
        "LogChunk",
        "Page",
        "Problem",
    ),
    "gpu_platform.domain.access.enrollment": ("Enrollment",),
    "gpu_platform.domain.access.secrets": ("SecretInfo",),
    "gpu_platform.domain.access.tokens": ("LoginInfo", "NewToken", "TokenInfo", "WhoAmI"),
    "gpu_platform.domain.audit": ("AuditRecord",),
    "gpu_platform.domain.cluster_report": ("ClusterReport",),
    "gpu_platform.domain.events": ("Event",),
    "gpu_platform.domain.hosts.gpu": ("ClusterCounts", "Gpu", "GpuHealth", "Host"),
    "gpu_platform.domain.hosts.remediation": ("RemediationStatus", "ServiceCase"),
    "gpu_platform.domain.hosts.samples": ("MetricsHistory",),
    "gpu_platform.domain.jobs.array": ("Array",),
    "gpu_platform.domain.jobs.element_changes": ("ArrayChanged",),
    "gpu_platform.domain.jobs.checkpoint": ("CheckpointInfo",),
    "gpu_platform.domain.jobs.exec": ("ExecAttached", "ExecChunk", "ExecInfo", "ExecReceived", "ExecSession"),
    "gpu_platform.domain.jobs.job": ("Job", "QueueEntry"),
    "gpu_platform.domain.jobs.placement": ("Reason",),
    "gpu_platform.domain.jobs.schedule": ("Schedule",),
    "gpu_platform.domain.jobs.uploads": ("Upload",),
    "gpu_platform.domain.jobs.usage": ("JobUsage", "UsageReport"),
    "gpu_platform.domain.notifications": ("Delivery", "ShownTarget"),
    "gpu_platform.domain.pipelines.pipeline": ("Pipeline", "PipelineState"),
    "gpu_platform.domain.placing.cluster_state": ("ClusterState",),
    "gpu_platform.domain.placing.quota": ("QuotaUse",),
    "gpu_platform.domain.windows": ("Window",),
    "gpu_platform.domain.placing.what_if": ("WhatIf",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Called for a name that the module does not have yet."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no model {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found
