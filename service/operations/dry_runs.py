"""Runs the scheduler core inside the service, to say what the scheduler would do: dry runs, reasons, admission.

Each core gets the state from the store and uses the leader's policy. The core is pure, so it answers as the leader's
core would. Nothing is written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy.orm import Session

from gpu_platform.client.wire import DryRun
from gpu_platform.domain.errors import NotFound, PlatformError, PluginFailed
from gpu_platform.domain.jobs.deadline import deadline_refusal
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.plugin import PluginFault
from gpu_platform.learned.job_speeds import learned_speeds
from gpu_platform.learned.run_times import shared_run_times, traits_of
from gpu_platform.scheduling.dry_run import DryRunResult, decide_all, simulate_submission
from gpu_platform.scheduling.explaining.empty_cluster import EmptyCluster
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.scheduling.queueing.fair_share import HALF_LIVES
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store, state
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import admission, dependencies, jobs, promises
from gpu_platform.store.leadership import leader
from service.context import now
from service.operations import checkpoints, secrets
from service.operations.plugin_calls import hanging, in_time

log = structlog.get_logger()

PROBE = "this-job"
"""The job's id in the dry run. Real ids look different."""

_EMPTY = "empty cluster"

_looking_at_the_empty_cluster = threading.Lock()
"""Held while a thread asks the kept :class:`EmptyCluster`, or makes it anew."""

_T = TypeVar("_T")


def usable_policy(written: Mapping[str, Any], off: Sequence[PluginFault]) -> Policy:
    """The leader's policy without the plugins that the leader switched off, that cannot be loaded here, or that hung
    here."""
    policy = read_policy(written, do_without=lambda fault: True)
    for fault in (*off, *hanging()):
        policy = policy.without(fault)
    return policy


def _asked(policy: Policy, ask: Callable[[Policy], _T]) -> _T:
    """The result of ``ask``. If a plugin fails or hangs in it, ask again without the plugin, as the leader does."""
    while True:
        try:
            return _in_time(policy, partial(ask, policy))
        except PluginFailed as error:
            log.warning("planning.plugin_failed", plugin=error.fault.name, error=error.fault.error)
            policy = policy.without(error.fault)


def _in_time(policy: Policy, call: Callable[[], _T]) -> _T:
    return in_time(call) if policy.calls_plugins else call()


def snapshot(store: Store) -> ClusterState:
    """The live state and the current policy, without anything secret."""
    written = leader.current_policy(store)
    policy = usable_policy(written, [])
    remembered = timedelta(seconds=HALF_LIVES * policy.half_life_s) if policy.uses_shares else None
    found = shared_run_times(store).in_state(state.read_state(store, now(), remembered))
    return found.without_tokens().model_copy(update={"policy": written})


def dry_run(store: Store, spec: JobSpec) -> DryRun:
    """Where and when ``spec`` would start if it were submitted now, or why it would not."""
    try:
        checkpoints.check_resume(store, spec)
        secrets.check_secrets(store, spec)
        if (refusal := deadline_refusal(spec, now())) is not None:
            return DryRun(accepted=False, message=refusal)
        with store.read() as session:
            admission.check_quotas(session, spec)
            admission.check_possible(store, session, spec, admission_refusal(store))
            first = dependencies.check(session, spec)
    except PlatformError as refusal:
        return DryRun(accepted=False, message=refusal.message)
    waits_for = None if first is None else first.message
    cluster = snapshot(store)
    probe = replace(_as_if_submitted(spec, cluster.at), run_time=shared_run_times(store).expect(traits_of(spec)))

    def submit(policy: Policy) -> tuple[DryRunResult, int]:
        core = load_cluster_state(Scheduler(policy, explains=False), cluster)
        core.intervals.restore(leader.start_ratios(store))
        if policy.uses_history and spec.spans_hosts:
            for hosts, speed in learned_speeds(store):
                core.record_speed(hosts, speed)
        outcome = simulate_submission(core, probe, cluster.at)
        return outcome, sum(core.queue.order(row) < core.queue.order(probe) for row in core.queue)

    found, ahead = _asked(usable_policy(cluster.policy, leader.plugin_faults(store)), submit)
    if found.placement is not None:
        message = f"would start now: {found.placement.why}"
        return DryRun(accepted=True, message=message, placement=found.placement, waits_for=waits_for)
    assert found.reason is not None, "what has no place has a reason"
    return DryRun(
        accepted=True,
        message=_waits(found, cluster.at),
        reason=found.reason.model_copy(update={"position": ahead + 1, "first_job": None}),
        preempts=list(found.preempts),
        preempts_at=found.preempts_at,
        waits_for=waits_for,
    )


def admission_refusal(store: Store) -> admission.Refusal:
    """Returns a function that says why a job could never be placed, even if all registered hosts were healthy and
    empty."""

    def refusal(session: Session, spec: JobSpec) -> str | None:
        probe = _as_if_submitted(spec, 0.0)
        with _looking_at_the_empty_cluster:
            written, off = leader.current_policy(session), leader.plugin_faults(session)
            stamp = admission.hosts_version(session), written, off
            known: tuple[object, Policy, EmptyCluster] | None = store.memo.get(_EMPTY)
            if known is not None and known[0] == stamp:
                with contextlib.suppress(PluginFailed):
                    if _in_time(known[1], partial(known[2].refusal, probe)) is None:
                        return None

            def refuse(policy: Policy) -> str | None:
                # Hosts may have moved in the fabric since. So look again before a job is refused.
                cluster = _empty_cluster(session, policy)
                store.memo[_EMPTY] = stamp, policy, cluster
                return cluster.refusal(probe)

            return _asked(usable_policy(written, off), refuse)

    return refusal


def _empty_cluster(session: Session, policy: Policy) -> EmptyCluster:
    rows = hosts.read_hosts(session)
    vanished = admission.vanished_gpus(session)
    incomplete = {
        row.name: row.inventory.model_copy(update={"gpus": row.inventory.gpus + vanished[row.name]})
        for row in rows
        if row.name in vanished
    }
    return EmptyCluster(rows, policy, incomplete)


def _waits(found: DryRunResult, at: float) -> str:
    assert found.reason is not None
    if not found.preempts:
        return f"would wait: {found.reason.message}"
    jobs = ", ".join(found.preempts)
    it, has = ("it", "has") if len(found.preempts) == 1 else ("they", "have")
    if found.preempts_at is None:
        return f"would preempt {jobs} at once, and start as soon as {it} {has} stopped"
    wait_s = found.preempts_at - at
    return f"would wait {wait_s:.0f} s until {jobs} {has} run for the policy's min_run_s, and then preempt {jobs}"


def why(store: Store, job_id: str) -> Reason:
    """Why this one job waits: the leader's reason, and details that the leader has no time to compute.

    Raises :class:`NotFound`, also if the job does not wait.
    """
    job = jobs.get_job(store, job_id)
    cluster = snapshot(store)

    def look(policy: Policy) -> Reason | None:
        core = load_cluster_state(Scheduler(policy, explains=False), cluster)
        decide_all(core, cluster.at)
        return core.why(job_id, cluster.at)

    reason = _asked(usable_policy(cluster.policy, leader.plugin_faults(store)), look)
    if reason is not None:
        shown = reason.for_job(job_id, job.reason.position if job.reason else None)
        return promises.as_told(store, {job_id: shown})[job_id]
    if job.reason is not None:
        return job.reason  # the job is being placed
    raise NotFound(f"job {job_id} does not wait: it is {job.state}", job_id=job_id)


def _as_if_submitted(spec: JobSpec, at: float) -> PlacementRequest:
    return PlacementRequest.from_spec(spec, PROBE, 1, at).with_class_key()
