"""Small simulations in one line: ``trace(came(at=0, gpus=8, runs=100)).on(hosts(2)).report()``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.failures import Outage
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
from gpu_platform.scheduling.simulator.records import SimulatedJob, SimulationRun
from gpu_platform.scheduling.simulator.reports.report import SimulationReport, report_on


def came(
    name: str, /, *, at: float, runs: float, gpus: int = 1, hosts: int = 1, limit: float | None = None, **given: object
) -> TraceJob:
    request = ResourceRequest(hosts=hosts, gpus_per_host=gpus, allow_cross_numa=True)
    return TraceJob.model_validate(
        {"id": name, "submit_s": at, "duration_s": runs, "gpus": request, "time_limit_s": limit, **given}
    )


def hosts(count: int, gpus: int = 8) -> list[HostRow]:
    """``gpu-0000``, ``gpu-0001``, …; no NVLink."""
    return ClusterFile(hosts=[HostGroup(count=count, gpus=gpus, name="gpu")]).rows()


@dataclass(frozen=True)
class Simulation:
    jobs: tuple[TraceJob, ...]
    cluster: list[HostRow] = field(default_factory=list)
    policy: Policy = field(default_factory=Policy)
    failures: tuple[Outage, ...] = ()
    until_s: float | None = None
    checkpoint_s: float | None = None

    def on(self, cluster: list[HostRow]) -> Simulation:
        return replace(self, cluster=cluster)

    def under(self, policy: Policy) -> Simulation:
        return replace(self, policy=policy)

    def failing(self, *failures: Outage, checkpoint: float | None = None) -> Simulation:
        return replace(self, failures=failures, checkpoint_s=checkpoint)

    def until(self, seconds: float) -> Simulation:
        return replace(self, until_s=seconds)

    def run(self) -> SimulationRun:
        return simulate(
            Trace.of("test", self.jobs),
            self.cluster,
            self.policy,
            failures=self.failures,
            until_s=self.until_s,
            checkpoint_s=self.checkpoint_s,
        )

    def report(self) -> SimulationReport:
        return report_on(self.run(), "test")

    def records(self) -> dict[str, SimulatedJob]:
        return {record.job.id: record for record in self.run().records}


def trace(*jobs: TraceJob | Iterable[TraceJob]) -> Simulation:
    flat: list[TraceJob] = []
    for job in jobs:
        flat.extend([job] if isinstance(job, TraceJob) else job)
    return Simulation(tuple(flat))
