"""From a placement to what each host starts: ranks, their GPUs and their environment."""

from __future__ import annotations

from gpu_platform.domain.attempt import AttemptKey, HostPlan, RankSpec
from gpu_platform.domain.job import JobSpec, RankPer
from gpu_platform.domain.placement import Placement


def plan_hosts(spec: JobSpec, key: AttemptKey, placement: Placement) -> list[HostPlan]:
    """One plan per host, in the placement's order; ranks are numbered through it. Rank 0's host is first.

    The environment has what torchrun, MPI launchers and NCCL read; the host adds the rest
    (rendezvous address, devices, checkpoint directories).
    """
    per_host = spec.gpus.gpus_per_host if spec.rank_per is RankPer.GPU else 1
    world_size = per_host * len(placement.slices)
    plans: list[HostPlan] = []
    for node_rank, part in enumerate(placement.slices):
        ranks = [
            RankSpec(
                rank=node_rank * per_host + local_rank,
                local_rank=local_rank,
                gpu_uuids=part.gpu_uuids,
                command=spec.command,
                env={
                    **spec.env,
                    "RANK": str(node_rank * per_host + local_rank),
                    "LOCAL_RANK": str(local_rank),
                    "WORLD_SIZE": str(world_size),
                    "LOCAL_WORLD_SIZE": str(per_host),
                    "NODE_RANK": str(node_rank),
                    "GPU_PLATFORM_JOB_ID": key.job_id,
                    "GPU_PLATFORM_ATTEMPT": str(key.attempt),
                },
                workdir=spec.workdir,
            )
            for local_rank in range(per_host)
        ]
        plans.append(
            HostPlan(
                key=key,
                host=part.host,
                user=spec.user,
                namespace=spec.namespace,
                ranks=ranks,
                gpu_uuids=part.gpu_uuids,
                resume_from_attempt=key.attempt - 1 if key.attempt > 1 else None,
            )
        )
    return plans
