"""What the scheduler would say, asked here: a core of our own, told what the store holds, by the leader's policy.

The core is pure, so it answers as the leader's would; nothing is written, nobody is disturbed.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from gpu_platform.client.wire import DryRun
from gpu_platform.domain.cluster_state import ClusterState
from gpu_platform.domain.errors import NotFound, PlatformError
from gpu_platform.domain.job import JobSpec
from gpu_platform.domain.placement import Reason
from gpu_platform.domain.rows import QueueRow, as_scheduled
from gpu_platform.scheduling.fair_share import HALF_LIVES
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.scheduling.restore import restore
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store, admission, jobs, leader, state
from service.platform import now

PROBE = "this-job"
"""Its id in the dry run; real ids look different."""

_one_at_a_time = threading.Lock()
"""Each needs a core of its own, and may take a second of a big cluster's."""


def snapshot(store: Store) -> ClusterState:
    """The live state and the policy in force, with nothing secret in it."""
    written = leader.current_policy(store)
    policy = read_policy(written)
    remembered = timedelta(seconds=HALF_LIVES * policy.half_life_s) if policy.order == "fair_share" else None
    found = state.read_state(store, now(), remembered)
    return found.without_tokens().model_copy(update={"policy": written})


def dry_run(store: Store, spec: JobSpec) -> DryRun:
    """Where and when ``spec`` would start if it were submitted now, and if not, why."""
    try:
        with store.read() as session:
            admission.check_quotas(session, spec)
            admission.check_possible(store, session, spec)
    except PlatformError as refusal:
        return DryRun(accepted=False, message=refusal.message)
    with _one_at_a_time:
        cluster = snapshot(store)
        core = restore(Scheduler(read_policy(cluster.policy), explains=False), cluster)
        probe = _as_if_submitted(spec, cluster.at)
        core.add(probe)
        decision = core.decide(cluster.at)
        for row, placement in decision.placements:
            if row.job_id == PROBE:
                return DryRun(accepted=True, message=f"would start now: {placement.why}", placement=placement)
        reason = core.why(PROBE, cluster.at)
        assert reason is not None, "it was not placed, so it waits"
    ahead = sum(core.queue.order(row) < core.queue.order(probe) for row in core.queue)
    return DryRun(
        accepted=True,
        message=f"would wait: {reason.message}",
        reason=reason.model_copy(update={"position": ahead + 1, "first_job": None}),
        preempts=[job for one in decision.preemptions if one.job_id == PROBE for job, _ in one.victims],
    )


def why(store: Store, job_id: str) -> Reason:
    """Why this one job waits, as things stand: what the leader tells, and what it has no time to find out.

    Raises :class:`NotFound`, also if the job does not wait.
    """
    job = jobs.get_job(store, job_id)
    with _one_at_a_time:
        cluster = snapshot(store)
        core = restore(Scheduler(read_policy(cluster.policy), explains=False), cluster)
        core.decide(cluster.at)
        reason = core.why(job_id, cluster.at)
    if reason is not None:
        return reason.for_job(job_id, job.reason.position if job.reason else None)
    if job.reason is not None:
        return job.reason  # it is being placed
    raise NotFound(f"job {job_id} does not wait: it is {job.state}", job_id=job_id)


def _as_if_submitted(spec: JobSpec, at: float) -> QueueRow:
    gpus, groups = as_scheduled(spec.gpus, spec.groups, spec.spare_hosts)
    return QueueRow(
        job_id=PROBE,
        attempt=1,
        gpus=gpus,
        groups=groups,
        priority=spec.priority,
        namespace=spec.namespace,
        user=spec.user,
        enqueued_at=at,
        time_limit_s=spec.time_limit_s,
        preemptible=spec.preemptible,
        checkpoints=spec.checkpoints,
        class_key=PROBE,  # a reason of its own, not that of others who ask for the same
    )
