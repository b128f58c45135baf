"""Admission: the last check of a job before it enters the queue."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from activities.clock import utc_now
from gpu_platform.domain.errors import InvalidRequest, NotFound, Unavailable
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs


class AdmissionResult(BaseModel):
    admitted: bool
    withdrawn: bool = False
    """The submission was withdrawn before its user was told that it was accepted."""
    failure: Failure | None = None


class AdmissionActivities:
    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def admit_job(self, job_id: str) -> AdmissionResult:
        """PENDING -> QUEUED, or the reason why not.

        Raises :class:`Unavailable`, to be tried again, when the database lost the job: the leader restores it.
        """
        try:
            jobs.admit_job(self._store, job_id, utc_now())
        except NotFound as error:
            if jobs.was_withdrawn(self._store, job_id):
                return AdmissionResult(admitted=False, withdrawn=True)
            message = f"the database does not know job {job_id}, and nobody withdrew it: it waits to be restored"
            raise Unavailable(message) from error
        except InvalidRequest as error:
            return AdmissionResult(
                admitted=False, failure=Failure(kind=blame(FailureCause.NOT_ADMITTED), message=error.message)
            )
        return AdmissionResult(admitted=True)
