"""From a placement to what each host starts: its ranks and their GPUs."""

from __future__ import annotations

from gpu_platform.domain.attempt import AttemptKey, HostPlan, RankLimits, RankSpec
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
            shares=part.shares,
            cuda=spec.gpus.cuda,
            limits=_limits(spec),
            resume_from_attempt=key.attempt - 1 if key.attempt > 1 else None,
        )
        for node_rank, part in enumerate(placement.slices)
    ]


def _limits(spec: JobSpec) -> RankLimits:
    return RankLimits(
        time_limit_s=spec.time_limit_s,
        warn_before_s=spec.warn_before_s,
        warn_signal=spec.warn_signal,
        hang_limit_s=spec.hang_limit_s,
        idle_limit_s=spec.idle_limit_s,
        power_limit_w=spec.power_limit_w,
        cpus=spec.gpus.cpus_per_host,
        ram_mib=spec.gpus.ram_mib_per_host,
    )
