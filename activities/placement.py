"""Asks the scheduler for a placement.

``place_gang`` writes the queue row and completes asynchronously: the scheduler answers through the task token in that
row when there is a placement. No thread waits meanwhile.
"""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.store import Store
from gpu_platform.store.jobs import queue
from gpu_platform.store.restoring import older_rows
from gpu_platform.store.restoring.older_rows import RowStanding
from gpu_platform.temporal.errors import workflow_is_older


class PlaceRequest(BaseModel):
    """An attempt that needs a placement, and what it must not get."""

    key: AttemptKey
    excluded_gpus: list[str] = []
    excluded_hosts: list[str] = []


class PlacementActivities:
    """The step that waits for the scheduler's answer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def place_gang(self, request: PlaceRequest) -> Placement:
        """Queue the attempt; the leader completes the activity with the placement.

        If the database was lost, NotFound is raised, so that it is tried again until the job is restored.
        """
        try:
            self._enqueue(request)
        except IllegalTransition as error:
            if older_rows.standing(self._store, request.key) is not RowStanding.BEHIND:
                raise workflow_is_older(request.key) from error
            older_rows.follow(self._store, request.key, utc_now())
            self._enqueue(request)
        activity.raise_complete_async()

    def _enqueue(self, request: PlaceRequest) -> None:
        queue.enqueue(
            self._store,
            request.key.job_id,
            request.key.attempt,
            task_token=activity.info().task_token,
            excluded_gpus=request.excluded_gpus,
            excluded_hosts=request.excluded_hosts,
            now=utc_now(),
        )
