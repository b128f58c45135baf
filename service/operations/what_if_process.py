"""The process of one what-if: it reads the live state and the question from stdin, and writes the answer to stdout.

A process of its own takes no time from requests, has no connection to anything, and can be ended.
"""

from __future__ import annotations

import math
import os
import sys
from datetime import UTC, datetime

import numpy as np
from pydantic import BaseModel

from gpu_platform.domain.errors import NotFound, PlatformError
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow
from gpu_platform.domain.placing.what_if import (
    SHOWN_STARTS,
    AddedHosts,
    WhatIf,
    WhatIfRequest,
    WhatIfRun,
    WhatIfSeries,
    WhatIfStart,
)
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.scheduling.simulator import engine
from gpu_platform.scheduling.simulator.inputs.files import load_policy
from gpu_platform.scheduling.simulator.inputs.start import SimulationStart
from gpu_platform.scheduling.simulator.inputs.trace import Trace
from gpu_platform.scheduling.simulator.records import JobOutcome, SimulationRun
from gpu_platform.scheduling.simulator.reports.report import report_on
from gpu_platform.topology.description import load_description, simulated_uuid

NICE = 10
"""Requests come first."""
PARTS = 120


class Question(BaseModel):
    """What is sent to the process."""

    state: ClusterState
    asked: WhatIfRequest


class WhatIfAnswer(BaseModel):
    """What it sends back: one of the two."""

    found: WhatIf | None = None
    refused: str | None = None


def what_if(question: Question) -> WhatIf:
    """Run the scheduler on the state as it is, and with the changes. Raises InvalidRequest and NotFound."""
    state, asked = question.state, question.asked
    policy = read_policy(state.policy, do_without=lambda fault: True)
    changed = load_policy("default", asked.settings, state.policy, called="asked for")[1] if asked.settings else policy
    larger = with_hosts(state, asked.hosts)
    before, notes = _run(state, policy, asked)
    after, _ = _run(larger, changed, asked)
    waiting = {row.job_id for row in state.queue}
    return WhatIf(
        at=datetime.fromtimestamp(state.at, UTC),
        notes=notes,
        now=_figures("as it is", before, waiting),
        then=_figures("with the changes", after, waiting),
        starts=_starts(state, before, after),
    )


def with_hosts(state: ClusterState, added: list[AddedHosts]) -> ClusterState:
    """The state with more hosts, which are free and healthy, under leaf switches of their own."""
    known = {row.name: row for row in state.hosts}
    hosts, gpus = list(state.hosts), list(state.gpus)
    for number, group in enumerate(added):
        for index in range(group.count):
            name = f"added-{number + 1}-{index + 1:04}"
            inventory = _inventory(group, name, known)
            hosts.append(HostRow(name, HostState.READY, inventory, f"added-leaf-{number + 1}", "added-spine"))
            gpus += [GpuRow(gpu.uuid, name, gpu.index, GpuState.AVAILABLE, True) for gpu in inventory.gpus]
    return state.model_copy(update={"hosts": hosts, "gpus": gpus})


def _inventory(group: AddedHosts, name: str, known: dict[str, HostRow]) -> HostInventory:
    if group.machine is not None:
        return load_description(group.machine).inventory(name)
    like = known.get(group.like or "")
    if like is None:
        raise NotFound(f"there is no host {group.like!r} to add hosts like it")
    uuids = {gpu.uuid: simulated_uuid(name, gpu.index) for gpu in like.inventory.gpus}
    gpus = [gpu.model_copy(update={"uuid": uuids[gpu.uuid]}) for gpu in like.inventory.gpus]
    return like.inventory.model_copy(update={"gpus": gpus})


def _run(state: ClusterState, policy: Policy, asked: WhatIfRequest) -> tuple[SimulationRun, list[str]]:
    start = SimulationStart.of(state, asked.lasting_s)
    run = engine.simulate(Trace.of("what if", []), state.hosts, policy, start=start, until_s=asked.until_s)
    return run, start.notes


def _figures(name: str, run: SimulationRun, waiting: set[str]) -> WhatIfRun:
    report = report_on(run, name)
    starts = [at for at in _started(run).values() if at is not None]
    median, most, last = np.percentile(starts, (50, 90, 100), method="higher").tolist() if starts else (0.0, 0.0, 0.0)

    def means(quantity: str) -> list[float]:
        return [round(value, 3) for value in run.timeline.means(quantity, run.begin_s, run.end_s, PARTS).tolist()]

    step = (run.end_s - run.begin_s) / PARTS
    return WhatIfRun(
        name=name,
        gpus=run.gpus,
        end_s=run.end_s,
        allocation_ratio=report.allocation_ratio,
        started=len(starts),
        waiting=report.jobs[JobOutcome.WAITING],
        preemptions=report.preemptions,
        wait_p50_s=median,
        wait_p90_s=most,
        wait_max_s=last,
        series=WhatIfSeries(
            at_s=[round(run.begin_s + (part + 0.5) * step, 3) for part in range(PARTS)],
            held_gpus=means("held"),
            waiting_jobs=means("waiting"),
        ),
    )


def _started(run: SimulationRun) -> dict[str, float | None]:
    """Job that waited at the beginning -> when it started, or None."""
    return {
        record.job.id: record.first_start_s
        for record in run.records
        if record.first_start_s is None or record.first_start_s >= run.begin_s
    }


def _starts(state: ClusterState, before: SimulationRun, after: SimulationRun) -> list[WhatIfStart]:
    now, then = _started(before), _started(after)
    starts = [
        WhatIfStart(
            job_id=row.job_id,
            namespace=row.namespace,
            gpus=row.gpu_count,
            now_s=now.get(row.job_id),
            then_s=then.get(row.job_id),
        )
        for row in state.queue
    ]
    never = math.inf
    starts.sort(key=lambda one: [never if at is None else at for at in (one.now_s, one.then_s)])
    return starts[:SHOWN_STARTS]


def main() -> None:
    """Answer one question."""
    os.nice(NICE)
    question = Question.model_validate_json(sys.stdin.buffer.read())
    try:
        answer = WhatIfAnswer(found=what_if(question))
    except PlatformError as error:
        answer = WhatIfAnswer(refused=error.message)
    sys.stdout.write(answer.model_dump_json())


if __name__ == "__main__":
    main()
