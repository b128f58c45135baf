"""A job whose workflow Temporal does not know any more goes on, from what our database says of it.

Starting a workflow under the job's id is what makes this safe: Temporal refuses it while another one is open. So a
job that is healthy after all cannot be begun again.
"""

from __future__ import annotations

from temporalio import workflow

from activities.beginning_again import TakenOverJob, TakeoverActivities
from activities.search_attributes import of_submission
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from workflows.attempts.endings import Ending, after_failure
from workflows.steps import database_step


async def begin_again(job_id: str, spec: JobSpec) -> TakenOverJob:
    """Read how far the job got. After this, no step that the lost workflow still asks for can change the database."""
    found = await database_step(TakeoverActivities.begin_again, job_id, summary="Where does the job stand?")
    workflow.upsert_search_attributes([pair.key.value_set(pair.value) for pair in of_submission(spec)])
    return found


def workflow_lost(spec: JobSpec, progress: JobProgress) -> Ending:
    """How the attempt ends that held GPUs: with a hardware retry, if one is left. Counts it in ``progress``."""
    message = "Temporal lost track of this job (its database was lost, or is older), so its ranks were stopped"
    return after_failure(Failure(kind=blame(FailureCause.WORKFLOW_LOST), message=message), spec, progress)
