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
    """Whether a job was admitted. ``failure``: why it was refused."""

    admitted: bool
    withdrawn: bool = False
    """The submission was withdrawn before its user got an answer."""
    failure: Failure | None = None


class AdmissionActivities:
    """The first step of a job: the check whether it may wait."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def admit_job(self, job_id: str) -> AdmissionResult:
        """Bring the job from PENDING to QUEUED, or say why it is refused.

        Raises :class:`Unavailable`, so that it is tried again, if the database lost the job: the leader restores it.
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
