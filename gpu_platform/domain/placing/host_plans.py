"""Turns a placement into host plans: which ranks each host starts, on which GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan, Program, RankLimits, RankSpec
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.launcher import Launcher
from gpu_platform.domain.jobs.placement import HostSlice, Placement
from gpu_platform.domain.jobs.ranks import PlacedRank, number_ranks, running_slices
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec


def plan_hosts(
    spec: JobSpec, key: AttemptKey, placement: Placement, terms: Mapping[str, int] = MappingProxyType({})
) -> list[HostPlan]:
    """One plan per host that runs ranks, rank 0's host first. ``terms``: see ``HostPlan.term``.

    Groups may share a host. Then its one plan has the ranks of all of them: checks, jail, start barrier and stopping
    are done once per host.
    """
    ranks = number_ranks(spec, placement.slices)
    requirements = spec.host_requirements.model_dump()
    if needs_jail(spec):
        requirements["require_isolation"] = True
    hosts: dict[str, list[HostSlice]] = {}
    for one in running_slices(spec, placement.slices):
        hosts.setdefault(one.host, []).append(one)
    return [
        HostPlan(
            key=key,
            host=host,
            node_rank=node_rank,
            world_size=len(ranks),
            user=spec.user,
            namespace=spec.namespace,
            command=spec.command,
            env=spec.env,
            workdir=spec.workdir,
            ranks=[_rank(rank) for rank in ranks if rank.host == host],
            gpu_uuids=[uuid for one in slices for uuid in one.gpu_uuids],
            shares=[grant for one in slices for grant in one.shares],
            cuda=spec.gpus.cuda,
            groups=_programs(spec, {one.group for one in slices}),
            limits=_limits(spec, slices),
            term=terms.get(host, 0),
            fencing=spec.fencing or Fencing.LEASE,
            resume_from_attempt=key.attempt - 1 if key.attempt > 1 else None,
            checkpoint=spec.checkpoint,
            secrets=spec.secrets,
            job_token=spec.job_token,
            artifacts=spec.artifacts,
            environment=spec.environment,
            launcher=spec.launcher,
            host_count=None if spec.launcher is Launcher.PLAIN else len(hosts),
            **requirements,
        )
        for node_rank, (host, slices) in enumerate(hosts.items())
    ]


def needs_jail(spec: JobSpec) -> bool:
    """True if its ranks run in a jail or not at all. The jail is what runs a container."""
    in_container = spec.environment is not None and spec.environment.container is not None
    return spec.require_isolation or in_container or any(request.isolated for request in spec.requests)


def _rank(rank: PlacedRank) -> RankSpec:
    return RankSpec(
        rank=rank.rank,
        local_rank=rank.local_rank,
        gpu_uuids=rank.gpu_uuids,
        group=rank.group,
        local_size=rank.local_size,
    )


def _programs(spec: JobSpec, here: set[str | None]) -> dict[str, Program]:
    return {
        group.name: Program(command=group.command or spec.command, env={**spec.env, **group.env}, cuda=group.gpus.cuda)
        for group in spec.groups
        if group.name in here
    }


def _limits(spec: JobSpec, slices: list[HostSlice]) -> RankLimits:
    """The limits of the ranks on one host. CPUs and memory are those of all its slices together."""
    request: dict[str | None, ResourceRequest] = {group.name: group.gpus for group in spec.groups}
    request[None] = spec.gpus
    asked = [request[one.group].slices(len(one.gpu_uuids)) for one in slices]
    return RankLimits(
        time_limit_s=spec.time_limit_s,
        deadline_at=None if spec.deadline_at is None else spec.deadline_at.timestamp(),
        warn_before_s=spec.warn_before_s,
        warn_signal=spec.warn_signal,
        warn_program_only=spec.warn_program_only,
        hang_limit_s=spec.hang_limit_s,
        idle_limit_s=spec.idle_limit_s,
        power_limit_w=spec.power_limit_w,
        grace_s=spec.grace_s,
        cpus=sum(one.cpus_per_host for one in asked),
        ram_mib=sum(one.ram_mib_per_host for one in asked),
    )
