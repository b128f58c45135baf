"""Takes over a job whose workflow Temporal has lost. The job goes on from what the database says.

This is safe because Temporal refuses to start a workflow with the job's id while another one is open. So nothing takes
over a job that is healthy after all.
"""

from __future__ import annotations

from temporalio import workflow

from activities.takeover import TakenOverJob, TakeoverActivities
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.temporal.search_attributes import of_submission
from workflows.attempts.endings import Ending, after_failure
from workflows.steps import database_step


async def take_over(job_id: str, spec: JobSpec) -> TakenOverJob:
    """Read how far the job got. After this, no step that the lost workflow still asks for can change the database."""
    found = await database_step(TakeoverActivities.take_over, job_id, summary="Where does the job stand?")
    workflow.upsert_search_attributes([pair.key.value_set(pair.value) for pair in of_submission(spec)])
    return found


def workflow_lost(spec: JobSpec, progress: JobProgress) -> Ending:
    """How the attempt ends that held GPUs: with a hardware retry, if one is left. Counts it in ``progress``."""
    message = "Temporal lost track of this job (its database was lost, or is older), so its ranks were stopped"
    return after_failure(Failure(kind=blame(FailureCause.WORKFLOW_LOST), message=message), spec, progress)
