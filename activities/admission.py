"""Admission: the last check of a job before it enters the queue. If there is room, the job gets its first place."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from pydantic import BaseModel
from temporalio import activity

from activities.first_places import FirstPlaces
from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InvalidRequest, NotFound, Unavailable
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import first_places
from gpu_platform.store.reservations.first_places import FIRST_ATTEMPT


class AdmissionResult(BaseModel):
    """Whether a job was admitted. ``failure``: why it was refused."""

    admitted: bool
    withdrawn: bool = False
    """The submission was withdrawn before its user got an answer."""
    failure: Failure | None = None
    reserved: Reserved | None = None
    """What its first attempt holds already. None: it must wait for a placement."""


class AdmissionActivities:
    """The first step of a job: the check whether it may wait, and its first place. ``executor`` runs what blocks."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._first_places = FirstPlaces(store, executor)

    @activity.defn
    async def admit_job(self, job_id: str) -> AdmissionResult:
        """Bring the job from PENDING to QUEUED, or say why it is refused. Wait a moment for its first place.

        Raises :class:`Unavailable`, so that it is tried again, if the database lost the job: the leader restores it.
        """
        result, asks = await asyncio.get_running_loop().run_in_executor(self._executor, admit, self._store, job_id)
        if asks:
            result.reserved = await self._first_places.wait(AttemptKey(job_id=job_id, attempt=FIRST_ATTEMPT))
        return result


def admit(store: Store, job_id: str) -> tuple[AdmissionResult, bool]:
    """See :meth:`AdmissionActivities.admit_job`. Returns also whether the job asks for its first place now."""
    try:
        asks, held = first_places.admit_and_ask(store, job_id, utc_now())
    except NotFound as error:
        if jobs.was_withdrawn(store, job_id):
            return AdmissionResult(admitted=False, withdrawn=True), False
        message = f"the database does not know job {job_id}, and nobody withdrew it: it waits to be restored"
        raise Unavailable(message) from error
    except InvalidRequest as error:
        failure = Failure(kind=blame(FailureCause.NOT_ADMITTED), message=error.message)
        return AdmissionResult(admitted=False, failure=failure), False
    if held is not None:
        held = held.model_copy(update={"repeated": True})
    return AdmissionResult(admitted=True, reserved=held), asks
