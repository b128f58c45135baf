# Generated from aio/cluster.py (make client): do not edit, change that one.
"""What concerns the cluster as a whole: its state, quotas, usage and notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import calls, models
from gpu_platform.client.sync.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from gpu_platform.client.wire import CheckpointRoot, Clock, Health
    from gpu_platform.domain.cluster_report import ClusterReport
    from gpu_platform.domain.hosts.gpu import ClusterCounts
    from gpu_platform.domain.jobs.usage import UsageReport
    from gpu_platform.domain.notifications import Delivery, ShownTarget
    from gpu_platform.domain.placing.cluster_state import ClusterState
    from gpu_platform.domain.placing.quota import QuotaUse
    from gpu_platform.domain.placing.what_if import WhatIf, WhatIfRequest


class Cluster(Asking):
    """Methods about the cluster as a whole."""

    def ready(self) -> Health:
        """The state of the service. Raises :class:`Unavailable` if it cannot do its work."""
        return self.send(calls.ready(), models.Health)

    def counts(self) -> ClusterCounts:
        """How many hosts and GPUs are in each state. Cheap in a cluster of any size."""
        return self.send(calls.counts(), models.ClusterCounts)

    def clocks(self) -> list[Clock]:
        """How far the clocks of database and hosts are from the service's. Each host is asked."""
        return (self.send(calls.clocks(), models.Page[models.Clock])).items

    def snapshot(self) -> ClusterState:
        """The live state of the cluster as one document."""
        return self.send(calls.snapshot(), models.ClusterState)

    def what_if(self, asked: WhatIfRequest) -> WhatIf:
        """What the scheduler would do with more hosts or another policy. Nothing is changed."""
        return self.send(calls.what_if(asked), models.WhatIf)

    def quotas(self) -> Iterator[QuotaUse]:
        """Guarantees, limits and what is held now, by namespace."""
        return self.pages(models.Page[models.QuotaUse], calls.quotas)

    def usage(
        self,
        *,
        namespace: str | None = None,
        user: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> UsageReport:
        """Sums over the attempts that ended from ``since`` to before ``until`` (times with a time zone)."""
        return self.send(calls.usage(namespace, user, since, until), models.UsageReport)

    def report(self, *, since: datetime | None = None, until: datetime | None = None) -> ClusterReport:
        """The key figures of the cluster from ``since`` (default: seven days before) to before ``until`` (now)."""
        return self.send(calls.report(since, until), models.ClusterReport)

    def check_checkpoint_roots(self) -> list[CheckpointRoot]:
        """Which hosts share a checkpoint root. The hosts test it with a file."""
        return (self.send(calls.check_checkpoint_roots(), models.Page[models.CheckpointRoot])).items

    def notification_targets(self) -> list[ShownTarget]:
        """The targets that one may name in ``notify`` of a job."""
        return (self.send(calls.notification_targets(), models.Page[models.ShownTarget])).items

    def test_notification_target(self, target: str, address: str | None = None) -> list[Delivery]:
        """Send a test message to a target that one may name, and say what came of it. ``address``: for a target that
        sends to addresses of users; None: to one's own."""
        wanted = calls.test_notification_target(target, address)
        return (self.send(wanted, models.Page[models.Delivery])).items

    def test_notifications(self, target: str | None = None) -> list[Delivery]:
        """Send a test message to one target of notifications, or to all, and say what came of it."""
        return (self.send(calls.test_notifications(target), models.Page[models.Delivery])).items
