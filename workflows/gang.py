"""From a placement to what each host starts: its ranks and their GPUs."""

from __future__ import annotations

from gpu_platform.domain.attempt import AttemptKey, HostPlan, RankSpec
from gpu_platform.domain.job import JobSpec, RankPer
from gpu_platform.domain.placement import Placement


def plan_hosts(spec: JobSpec, key: AttemptKey, placement: Placement) -> list[HostPlan]:
    """One plan per host, in the placement's order; ranks are numbered through it. Rank 0's host is first."""
    per_host = spec.gpus.gpus_per_host if spec.rank_per is RankPer.GPU else 1
    return [
        HostPlan(
            key=key,
            host=part.host,
            node_rank=node_rank,
            world_size=per_host * len(placement.slices),
            user=spec.user,
            namespace=spec.namespace,
            command=spec.command,
            env=spec.env,
            workdir=spec.workdir,
            ranks=[
                RankSpec(rank=node_rank * per_host + local_rank, local_rank=local_rank, gpu_uuids=part.gpu_uuids)
                for local_rank in range(per_host)
            ],
            gpu_uuids=part.gpu_uuids,
            resume_from_attempt=key.attempt - 1 if key.attempt > 1 else None,
        )
        for node_rank, part in enumerate(placement.slices)
    ]
