"""The step in which a job or an array looks whether the jobs and arrays that it comes after have ended."""

from __future__ import annotations

from temporalio import activity

from activities.lost_arrays import LostArrays
from gpu_platform.clock import utc_now
from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.errors import NotFound, Unavailable
from gpu_platform.store import Store
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.dependencies import DependencyLook


class DependencyActivities:
    """Looks whether a job or an array may go on, and releases or holds it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lost = LostArrays(store)

    @activity.defn
    def look_at_dependencies(self, job_id: str) -> DependencyLook:
        """Whether the job may go on. Raises :class:`Unavailable`, so that it is tried again, if the database lost the
        job: the leader restores it. An array that stays unknown ends; see :class:`LostArrays`."""
        if is_array_id(job_id):
            with self._lost.ending(job_id):
                return dependencies.look(self._store, job_id, utc_now())
        try:
            return dependencies.look(self._store, job_id, utc_now())
        except NotFound as error:
            raise Unavailable(f"the database does not know job {job_id}: it waits to be restored") from error
