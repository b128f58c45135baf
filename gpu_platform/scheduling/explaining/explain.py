"""Why a job waits, as data and in one sentence: the words for filters and for plain jobs.

``explain_gangs`` has those for gangs, ``waiting_reasons`` those for quotas and the order of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import EstimateBasis, HostCount, Reason, ReasonCode, WaitCode
from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST, NETWORK_GB_S, ResourceRequest
from gpu_platform.domain.placing.capacity import describe
from gpu_platform.domain.states import HostState
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.explaining.chosen_hosts import labels_there, too_few_chosen
from gpu_platform.scheduling.explaining.explain_windows import kept_for
from gpu_platform.scheduling.explaining.phrases import (
    AMOUNTS,
    ASKED,
    BEST_FACT,
    INSIDE,
    PHRASES,
    REMEDIES,
    asked_of_a_host,
    gpu_count,
    plural,
)
from gpu_platform.scheduling.placing.candidates import Candidates
from gpu_platform.scheduling.placing.domains import is_between_hosts, together
from gpu_platform.scheduling.placing.framework import CODES, FITS, NamedFilter
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.topology.subsets import best_subset_for

NAMED = 3
"""How many GPUs a reason names if there are several."""


@dataclass(frozen=True)
class BlockedHosts:
    """Hosts that fit, but are kept for jobs ahead in the queue."""

    hosts: NDArray[np.bool_]
    """The hosts, by host index."""
    job_id: str
    """The first of the jobs for which they are kept."""


def explain(
    resources: ResourceRequest,
    snapshot: Snapshot,
    candidates: Candidates,
    kept: BlockedHosts | None,
    starts_by: float | None = None,
) -> Reason:
    """Say why ``resources`` was not placed on ``snapshot``."""
    fits = int(candidates.fits.sum())
    counts = _counts(resources, snapshot, candidates, kept)
    if int(together(resources, snapshot, candidates.after_health).sum()) < resources.hosts:
        if len(snapshot) == 0:
            code, next_step = WaitCode.NO_HOSTS, "start a node worker: no host is registered yet"
        else:
            code, next_step = WaitCode.NEVER_FITS, _smaller(resources, snapshot, candidates)
    elif not snapshot.ready.any():
        code, next_step = WaitCode.NO_HOSTS, "a host must become ready: start its node worker, or end its drain"
    elif kept is not None and fits >= resources.hosts:
        code, next_step = WaitCode.BEHIND_HIGHER_PRIORITY, f"starts once {kept.job_id}, ahead in the queue, has started"
    else:
        code, next_step = WaitCode.WAITING_FOR_GPUS, _unblocking(resources, snapshot, candidates)
    free = fits - (int((candidates.fits & kept.hosts).sum()) if kept else 0)
    message = f"needs {_needs(resources)}: {plural(len(snapshot), 'host')}"
    phrases = [_phrase(count, candidates) for count in counts]
    if free:
        phrases.append(f"{free} free")
    return Reason(
        code=code,
        message=f"{message}; {', '.join(phrases)}" if phrases else message,
        counts=counts,
        next_step=next_step,
        starts_by=starts_by,
    )


def behind_displaced_jobs(reason: Reason) -> Reason:
    """Return the reason for the moment after several hosts were lost: see ``DisplacedJobs.hold_back_priority``."""
    return reason.model_copy(
        update={
            "code": WaitCode.BEHIND_HIGHER_PRIORITY,
            "next_step": "several hosts were lost: their jobs come back into the queue now, the most important first; "
            "this takes about 2 seconds",
        }
    )


def over_quota(resources: ResourceRequest, denial: QuotaDenial) -> Reason:
    """Return the reason of a job that the quotas do not allow."""
    return Reason(
        code=WaitCode.OVER_QUOTA,
        message=f"needs {_needs(resources)}: {denial.message}",
        next_step=denial.next_step,
    )


def with_preemption_at(reason: Reason, at: float) -> Reason:
    """Return the same reason for a job for which others will be stopped at that time (Unix seconds)."""
    return reason.model_copy(
        update={
            "estimated_start": at,
            "estimate": EstimateBasis.PREEMPTING,
            "estimated_between": None,
            "next_step": "nothing: jobs are stopped for it once they have run for the policy's min_run_s",
        }
    )


def _counts(
    resources: ResourceRequest, snapshot: Snapshot, candidates: Candidates, kept: BlockedHosts | None
) -> list[HostCount]:
    offers, counts = candidates.offers, []
    for number in np.flatnonzero(np.bincount(offers.code - FITS, minlength=len(CODES) + 1)[1:]).tolist():
        hosts = np.flatnonzero(offers.code == number)
        left = int(offers.left[hosts].max())
        if number >= len(CODES):
            step = candidates.site_filters[number - len(CODES)]
            counts.append(
                HostCount(
                    code=step.code, hosts=len(hosts), asked=step.text.asked, available=gpu_count(left), filter=step.name
                )
            )
            continue
        code = CODES[number]
        asked = ASKED.get(code, asked_of_a_host)(resources)
        available = _available(resources, code, snapshot, hosts, left)
        counts.append(HostCount(code=code, hosts=len(hosts), asked=asked, available=available))
    if kept is not None:
        hosts = int((candidates.fits & kept.hosts).sum())
        if hosts:
            asked = asked_of_a_host(resources)
            counts.append(HostCount(code=ReasonCode.KEPT, hosts=hosts, asked=asked, available=kept.job_id))
    return counts


def _phrase(count: HostCount, candidates: Candidates) -> str:
    """Return the words for hosts with one reason. A filter of another package has its own; a code without words is
    shown itself.
    """
    for step in candidates.site_filters:
        if step.name == count.filter:
            return f"{count.hosts} {step.text.rejected}"
    if count.code in PHRASES:
        return PHRASES[count.code](count)
    return f"{count.hosts} {count.code.replace('_', ' ')}"


def _available(
    resources: ResourceRequest, code: ReasonCode, snapshot: Snapshot, hosts: NDArray[np.intp], left: int
) -> str:
    """Return the best that ``hosts`` have of what ``code`` counts."""
    if code is ReasonCode.HOST_NOT_READY:
        return _not_ready(snapshot, hosts)
    if code is ReasonCode.LABEL:
        return labels_there(resources, snapshot, hosts)
    if code is ReasonCode.WINDOW:
        return kept_for(snapshot, hosts)
    if code in BEST_FACT:
        machines = (snapshot.machines[number] for number in np.unique(snapshot.machine[hosts]).tolist())
        return BEST_FACT[code]([gpu for machine in machines for gpu in machine.gpus])
    if code in AMOUNTS:
        return AMOUNTS[code](snapshot, hosts)
    return gpu_count(left)


def _not_ready(snapshot: Snapshot, hosts: NDArray[np.intp]) -> str:
    """Return how many hosts are in which state, and the leaf, rack or power feed with which they were lost."""
    states = [snapshot.states[host] for host in hosts.tolist()]
    counts = [f"{states.count(state)} {state.lower()}" for state in HostState if state in states]
    names = {snapshot.names[host] for host in hosts.tolist()}
    losses = [str(loss) for loss in snapshot.lost_domains() if names.intersection(loss.hosts)]
    return ", ".join(counts) + (f"; lost with {' and '.join(losses)}" if losses else "")


def _unblocking(resources: ResourceRequest, snapshot: Snapshot, candidates: Candidates) -> str:
    """Say what must happen, if the machines themselves would be enough."""
    if int(together(resources, snapshot, candidates.after_use).sum()) >= resources.hosts:
        if int(candidates.fits.sum()) >= resources.hosts:
            if resources.gang_level is None:
                return "the hosts that fit are reserved for jobs ahead, which start before this one would end"
            return f"running jobs must free hosts {_within(resources)}"
        missing = resources.hosts - int(candidates.fits.sum())
        waiting_for = np.flatnonzero(candidates.after_use & ~candidates.fits)
        if not resources.gpus_per_host:
            where = "a host" if missing == 1 else f"{missing} hosts"
            return f"running jobs must free {asked_of_a_host(resources)} on {where}"
        best = int(candidates.offers.left[waiting_for].max())
        short = resources.gpus_per_host - best
        what = f"{short} more GPU{'' if short == 1 else 's'}" if short > 0 else "GPUs that are connected"
        return f"running jobs must free {what} on {'a host' if missing == 1 else f'{missing} hosts'}"
    unfit = np.flatnonzero(candidates.after_health & ~candidates.after_use)
    numbers = candidates.offers.code[unfit].tolist()
    first_unplaceable = {CODES[number] for number in numbers if number < len(CODES)}
    steps = [step for code, step in REMEDIES.items() if code in first_unplaceable]
    steps += [step.text.next_step for step, _ in _counts_of_site_filters(candidates, unfit)]
    if ReasonCode.HOST_NOT_READY in first_unplaceable and (losses := snapshot.lost_domains()):
        steps = [step for step in steps if step != REMEDIES[ReasonCode.HOST_NOT_READY]]
        steps.insert(0, f"{' and '.join(f'{loss.level} {loss.name}' for loss in losses)} must come back")
    healing = snapshot.being_reset(unfit)
    if healing and ReasonCode.UNHEALTHY in first_unplaceable | {ReasonCode.EXCLUDED}:
        steps.insert(0, _healing(healing))
    return " or ".join(steps) or "wait for hosts to come back"


def _counts_of_site_filters(
    candidates: Candidates, hosts: NDArray[np.bool_] | NDArray[np.intp]
) -> list[tuple[NamedFilter, int]]:
    """Return how many of ``hosts`` each filter of another package rejected."""
    numbers = candidates.offers.code[hosts].tolist()
    counted = [(step, numbers.count(len(CODES) + place)) for place, step in enumerate(candidates.site_filters)]
    return [(step, count) for step, count in counted if count]


def _healing(gpus: list[str]) -> str:
    named = ", ".join(gpus[:NAMED]) + (", …" if len(gpus) > NAMED else "")
    what = f"{plural(len(gpus), 'GPU')} ({named}) {'is' if len(gpus) == 1 else 'are'} being reset"
    return f"{what}: usable again as soon as the check after it passes, usually within a minute"


def unknown_level(resources: ResourceRequest, snapshot: Snapshot) -> str:
    """Say that the fabric does not have the required level. Empty if it has."""
    level = resources.required_level
    if level in INSIDE_ONE_HOST or not is_between_hosts(level) or level in snapshot.domains:
        return ""
    known = ", ".join(["numa", "socket", "host", *snapshot.domains, "any"])
    return f"there is no level {level!r}: require one of {known}, or none"


def _smaller(resources: ResourceRequest, snapshot: Snapshot, candidates: Candidates) -> str:
    """Say what was asked, what there is and what to do. ``able``, by host index: hosts that could hold one slice."""
    able = candidates.after_health
    if too_few := too_few_chosen(resources, snapshot):
        return f"asked for {describe(resources)}; {too_few}"
    capacity = snapshot.largest_gang(resources)
    if not capacity.fits:
        return capacity.message
    count, level = int(able.sum()), resources.gang_level
    asked = f"asked for {describe(resources)}"
    refused = _counts_of_site_filters(candidates, ~able)
    if refused:
        rejected = " and ".join(f"{plural(hosts, 'host')} {step.text.rejected}" for step, hosts in refused)
        return f"{asked}; {rejected}: {' or '.join(step.text.next_step for step, _ in refused)}"
    if resources.hosts > 1 and (unknown := unknown_level(resources, snapshot)):
        return f"{asked}; {unknown}"
    if count >= resources.hosts and level is not None:
        most = int(np.bincount(snapshot.domains[level][able]).max(initial=0))
        near = "NVLink domain" if level == "nvlink" else level
        else_ = f"require no {level}" if level == resources.required_level else _slower(NETWORK_GB_S)
        return (
            f"{asked} {_within(resources)}; of {plural(count, 'such host')}, at most {most} "
            f"{'is' if most == 1 else 'are'} in one {near}: "
            f"ask for at most {plural(most, 'host')}, or {else_}"
        )
    there = f"only {plural(count, 'host')} can" if count else "no host can"
    fastest = fastest_gb_s(resources, snapshot)
    if resources.gpus_per_host > 1 and fastest < resources.min_bandwidth_gb_s:
        most_at_once = f"{gpu_count(resources.gpus_per_host)} of one host have at most {fastest:g} GB/s between them"
        return f"{asked}; {most_at_once}: ask for fewer GPUs per host, or {_slower(fastest)}"
    if level in INSIDE:
        return f"{asked}{INSIDE[level]}; {there} give that: ask for fewer GPUs per host, or require no {level}"
    if not resources.allow_cross_numa:
        return (
            f"{asked}; {there} give so many on one NVLink ring or socket: "
            "ask for fewer GPUs per host, or allow_cross_numa (--allow-cross-numa)"
        )
    return f"{asked}; {there} give that, even when empty: ask for less per host"


def _needs(resources: ResourceRequest) -> str:
    place = ""
    if resources.gpus_per_host > 1:
        anywhere = " of one host" if resources.allow_cross_numa else " of one NVLink island or socket"
        place = INSIDE.get(resources.required_level or "", anywhere)
    if resources.hosts > 1 and is_between_hosts(resources.gang_level):
        place += f" {_within(resources)}"
    return describe(resources) + place


def _within(resources: ResourceRequest) -> str:
    return "of one NVLink domain" if resources.gang_level == "nvlink" else f"under one {resources.gang_level}"


def fastest_gb_s(resources: ResourceRequest, snapshot: Snapshot) -> float:
    """Return the bandwidth of the fastest ring that one host has for the request, in GB/s. 0: no host has a ring."""
    any_speed = resources.model_copy(update={"min_bandwidth_gb_s": 0.0})
    machines = [snapshot.machines[number] for number in set(snapshot.machine[: len(snapshot)].tolist())]
    rings = (best_subset_for(any_speed, machine, machine.all_gpus) for machine in machines)
    return max((ring.bandwidth_gb_s for ring in rings if ring is not None), default=0.0)


def _slower(gb_s: float) -> str:
    return f"for at most {gb_s:g} GB/s (min_bandwidth_gb_s, --min-bandwidth)"
