"""Does the database confirm what a workflow asks of a host? Control signs nothing else.

Whoever writes into Temporal can start workflows and send signals, and control runs them. But a host obeys signed orders
only, and what is signed here is what the service, the scheduler and the leader wrote into the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from pydantic import TypeAdapter, ValidationError

from activities.node.repair import RebootRequest
from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.contracts import (
    ARRAY_WORKFLOW,
    CLEANUP_WORKFLOW,
    JOB_WORKFLOW,
    PIPELINE_WORKFLOW,
    AttemptKey,
    cleanup_id,
    remediation_id,
)
from gpu_platform.domain.hosts.remediation import RepairStep
from gpu_platform.domain.jobs.array_steps import ElementsLaunch, ElementsWatch
from gpu_platform.domain.jobs.artifacts import OutputRequest
from gpu_platform.domain.jobs.attempt import HostPlan, LaunchRequest, StopRequest, WatchRequest
from gpu_platform.domain.placing.host_plans import plan_hosts
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import changes, elements, interrupts, pipelines
from gpu_platform.store.reservations import confirmations
from gpu_platform.temporal.payloads.orders import OrderedStep


class OrderChecks:
    """Answers for each step on a host why it is not confirmed, or None. Reads the database in ``executor``."""

    def __init__(self, store: Store, executor: Executor | None = None) -> None:
        self._store, self._executor = store, executor
        self._checks: dict[str, Callable[[OrderedStep], str | None]] = {
            "prepare_host": lambda asked: self._start(asked, HostPlan.model_validate_json(asked.argument)),
            "launch_ranks": lambda asked: self._launch(asked, LaunchRequest.model_validate_json(asked.argument)),
            "watch_ranks": lambda asked: self._watch(asked, WatchRequest.model_validate_json(asked.argument)),
            "launch_elements": lambda asked: self._launch_elements(
                asked, ElementsLaunch.model_validate_json(asked.argument)
            ),
            "watch_elements": lambda asked: self._watch_elements(
                asked, ElementsWatch.model_validate_json(asked.argument)
            ),
            "stop_ranks": lambda asked: self._stop(asked, StopRequest.model_validate_json(asked.argument)),
            "read_output": lambda asked: self._read_output(asked, OutputRequest.model_validate_json(asked.argument)),
            "reset_gpu": self._reset,
            "check_gpu": self._check_gpu,
            "reset_host": lambda asked: self._repair(asked, RepairStep.HOST_RESET, _uuid(asked)),
            "reboot_host": self._reboot,
        }

    async def __call__(self, asked: OrderedStep) -> str | None:
        """Why the step is not confirmed. None: it is."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.refusal, asked)

    def refusal(self, asked: OrderedStep) -> str | None:
        """As above, in this thread."""
        check = self._checks.get(asked.step)
        if check is None:
            return f"no host has a step {asked.step}"
        try:
            return check(asked)
        except ValidationError as error:
            return f"its argument is none of this step: {error.error_count()} errors"

    def _launch(self, asked: OrderedStep, request: LaunchRequest) -> str | None:
        plans = self._plans(request.plan.key)
        return _differs(asked, request.plan, plans) or self._meets_elsewhere([one.host for one in plans], request)

    def _start(self, asked: OrderedStep, plan: HostPlan) -> str | None:
        return _differs(asked, plan, self._plans(plan.key))

    def _launch_elements(self, asked: OrderedStep, request: ElementsLaunch) -> str | None:
        places = confirmations.held_places(self._store, [plan.key for plan in request.plans])
        refusals = (_differs(asked, plan, _plans(plan.key, places.get(plan.key))) for plan in request.plans)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _watch_elements(self, asked: OrderedStep, request: ElementsWatch) -> str | None:
        refusals = (self._watch(asked, watch) for watch in request.watches)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _plans(self, key: AttemptKey) -> list[HostPlan]:
        """The plans that the attempt must have. Empty: it holds nothing."""
        return _plans(key, confirmations.held_place(self._store, key))

    def _meets_elsewhere(self, hosts: list[str], request: LaunchRequest) -> str | None:
        """Why the ranks would not meet where the hosts of the job are: a wrong address would let another machine into
        the gang's network, or the ranks into another network."""
        found = request.rendezvous
        if len(hosts) == 1 and found is None:
            return None
        if found is None or found.host != hosts[0]:
            return f"the ranks of {request.plan.key} meet on host {hosts[0]}"
        places = confirmations.meeting_places(self._store, hosts)
        addresses = [places[one].address for one in hosts if one in places]
        if len(addresses) != len(hosts) or found.address != addresses[0]:
            return f"the address of host {hosts[0]} is not {found.address}"
        if found.gang:
            return None if found.gang == addresses else f"the hosts of the gang are at {', '.join(addresses)}"
        if len(hosts) > 1 and all(place.isolates_gangs for place in places.values()):
            return "all hosts of the gang give it a network of its own, and the order names none"
        return None

    def _watch(self, asked: OrderedStep, request: WatchRequest) -> str | None:
        if (refusal := _drives_not(asked, request.key.job_id)) is not None:
            return refusal
        if request.host != asked.host or not request.ranks:
            return "it watches no rank of this host"
        if request.limit is not None and not changes.allows_limit(self._store, request.key.job_id, request.limit):
            return f"job {request.key.job_id} has no time limit of {request.limit.time_limit_s} s"
        return None

    def _read_output(self, asked: OrderedStep, request: OutputRequest) -> str | None:
        if asked.workflow_type != PIPELINE_WORKFLOW or not request.path.startswith(f"{asked.workflow_id}/"):
            return f"workflow {asked.workflow_id} is not the pipeline of {request.path}"
        if not pipelines.is_directory_of(self._store, asked.workflow_id, request.job_id, request.path):
            return f"job {request.job_id} of the pipeline has no directory {request.path}"
        return None

    def _stop(self, asked: OrderedStep, request: StopRequest) -> str | None:
        key = request.key
        if request.host != asked.host:
            return f"it is for host {request.host}"
        if asked.workflow_type == CLEANUP_WORKFLOW and asked.workflow_id == cleanup_id(key):
            return None  # its first step found that no workflow drives the attempt
        if (refusal := _drives_not(asked, key.job_id)) is not None:
            return refusal
        job = confirmations.job_stands(self._store, key.job_id)
        if job is None or job.state.is_terminal or job.attempt != key.attempt:
            return None  # the attempt is over, or the database lost the job
        if request.reason == JobState.CANCELLED and not self._is_cancelled(key.job_id):
            return "nobody asked the service to cancel or kill the job"
        if request.reason == JobState.PREEMPTED and not self._is_preempted(request):
            return f"neither the scheduler nor an operator preempts attempt {key}"
        return None

    def _is_cancelled(self, job_id: str) -> bool:
        if interrupts.is_cancelled(self._store, job_id):
            return True
        array_id = array_of(job_id)
        return array_id is not None and elements.stops_by_itself(self._store, array_id)

    def _is_preempted(self, request: StopRequest) -> bool:
        if interrupts.is_preempted(self._store, request.key):
            return True
        place = confirmations.held_place(self._store, request.key)
        hosts = [] if place is None else place.placement.hosts
        return any(confirmations.open_repair(self._store, host) is not None for host in hosts)

    def _reset(self, asked: OrderedStep) -> str | None:
        uuid = _uuid(asked)
        if asked.workflow_id != remediation_id(uuid):
            return f"workflow {asked.workflow_id} is not the remediation of GPU {uuid}"
        return None if confirmations.gpu_in_reset(self._store, uuid, asked.host) else f"GPU {uuid} is not RESETTING"

    def _check_gpu(self, asked: OrderedStep) -> str | None:
        uuid = _uuid(asked)
        if asked.workflow_id != remediation_id(uuid) or not confirmations.is_gpu_of(self._store, uuid, asked.host):
            return f"workflow {asked.workflow_id} does not heal GPU {uuid} of host {asked.host}"
        return None

    def _reboot(self, asked: OrderedStep) -> str | None:
        request = RebootRequest.model_validate_json(asked.argument)
        found = confirmations.open_repair(self._store, asked.host)
        if found is not None and (request.host, request.boot_id) != (asked.host, found.boot_id):
            return f"host {asked.host} is repaired in another boot"
        return self._repair(asked, RepairStep.REBOOT, "" if found is None else found.gpu_uuid)

    def _repair(self, asked: OrderedStep, step: RepairStep, uuid: str) -> str | None:
        found = confirmations.open_repair(self._store, asked.host)
        if found is None or found.step != step or found.gpu_uuid != uuid or asked.workflow_id != remediation_id(uuid):
            return f"no {step.description} of host {asked.host} is under way for workflow {asked.workflow_id}"
        return None


def _plans(key: AttemptKey, place: confirmations.HeldPlace | None) -> list[HostPlan]:
    return [] if place is None else plan_hosts(place.spec, key, place.placement, place.terms)


def _differs(asked: OrderedStep, plan: HostPlan, plans: list[HostPlan]) -> str | None:
    """Why the plan is not one of the right ones."""
    if (refusal := _drives_not(asked, plan.key.job_id)) is not None:
        return refusal
    if not plans:
        return f"attempt {plan.key} holds nothing"
    right = next((one for one in plans if one.host == asked.host), None)
    if right is None or plan.host != asked.host:
        return f"attempt {plan.key} has no rank on host {asked.host}"
    if plan != right:
        wrong = [name for name in HostPlan.model_fields if getattr(plan, name) != getattr(right, name)]
        return f"the plan differs from the job in {', '.join(wrong)}"
    return None


def _drives_not(asked: OrderedStep, job_id: str) -> str | None:
    """Why the workflow does not drive the job. None: it is the job's own, or that of its array."""
    drivers = {(job_id, JOB_WORKFLOW), (array_of(job_id), ARRAY_WORKFLOW)}
    if (asked.workflow_id, asked.workflow_type) in drivers:
        return None
    return f"workflow {asked.workflow_id} is not that of job {job_id}"


def _uuid(asked: OrderedStep) -> str:
    return _TEXT.validate_json(asked.argument)


_TEXT = TypeAdapter(str)
