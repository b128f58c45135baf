"""The one long activity of the SchedulerWorkflow. The process that runs it is the leader and decides."""

from __future__ import annotations

from abc import ABC, abstractmethod

from temporalio import activity


class LeaderActivities(ABC):
    """What the workflow asks for. ``workers/scheduler/leader.py`` does it."""

    @activity.defn
    @abstractmethod
    async def lead(self, lead_s: float) -> None:
        """Decide for ``lead_s`` seconds, until the activity is cancelled, or until another leader takes over."""
