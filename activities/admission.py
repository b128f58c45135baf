"""Admission: the last look at a job before it may wait for GPUs."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from activities.clock import utc_now
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.job import Failure, FailureKind
from gpu_platform.store import Store, jobs


class Admission(BaseModel):
    admitted: bool
    withdrawn: bool = False
    """The submission was taken back: nobody was told that it was accepted."""
    failure: Failure | None = None


class AdmissionActivities:
    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def admit_job(self, job_id: str) -> Admission:
        """PENDING -> QUEUED, or the reason why not."""
        try:
            jobs.admit_job(self._store, job_id, utc_now())
        except NotFound:
            return Admission(admitted=False, withdrawn=True)
        except InvalidRequest as error:
            return Admission(admitted=False, failure=Failure(kind=FailureKind.REJECTED, message=error.message))
        return Admission(admitted=True)
