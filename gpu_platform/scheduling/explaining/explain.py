"""Why a job waits, as data and in one sentence: for plain jobs, for gangs of several groups, because of windows, and
because too few hosts have the labels and names that it asks for. ``phrases`` has the words for each filter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.host_choice import Constraint, HostChoice
from gpu_platform.domain.jobs.placement import EstimateBasis, HostCount, Reason, ReasonCode, WaitCode
from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST, NETWORK_GB_S, ResourceRequest
from gpu_platform.domain.placing.capacity import describe
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.window import WindowRow, kind_of, span_text, time_text
from gpu_platform.domain.states import HostState
from gpu_platform.domain.texts import duration
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.windows import ALL_CLOSED, holds_at_most_s, reservation_of
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
from gpu_platform.scheduling.placing.candidates import CandidateIndex, Candidates
from gpu_platform.scheduling.placing.domains import is_between_hosts, together
from gpu_platform.scheduling.placing.framework import CODES, FITS, NamedFilter
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.placing.splitting import can_hold, capacities
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.topology.subsets import best_subset_for

NAMED_GPUS = 3
"""How many GPUs a reason names if there are several."""
NAMED_WINDOWS = 2
"""How many windows or hosts a sentence names."""
NAMED_LABELS = 5
"""How many labels, values or hosts a sentence names."""


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
    named = ", ".join(gpus[:NAMED_GPUS]) + (", …" if len(gpus) > NAMED_GPUS else "")
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


def explain_gang(
    request: PlacementRequest,
    snapshot: Snapshot,
    candidates: CandidateIndex,
    placer: GangPlacer,
    fits_empty: Callable[[PlacementRequest], bool],
    kept: Callable[[PlacementRequest, Candidates], BlockedHosts | None],
    starts_by: float | None = None,
) -> Reason:
    """Say why ``request`` was not placed on ``snapshot``.

    ``fits_empty`` tells whether it would have a place once all jobs have ended, ``kept`` which hosts jobs ahead keep
    from a plain request.
    """
    first_unplaceable = placer.first_unplaceable(request)
    if first_unplaceable is not None:
        reason = _explain_group(first_unplaceable, snapshot, candidates, placer, kept)
        which = f"group {first_unplaceable.group} " if first_unplaceable.group else ""
        step = which + reason.next_step if reason.code is WaitCode.NEVER_FITS else reason.next_step
        update = {"message": which + reason.message, "next_step": step, "starts_by": starts_by}
        return reason.model_copy(update=update)
    asked = " and ".join(f"{group.group or ''} {describe(group.resources)}".strip() for group in request.rank_groups())
    whole = placer.fits(request)
    kept_hosts = (kept(*_example(group, candidates)) for group in request.rank_groups() if whole)
    held_back = next((one for one in kept_hosts if one), None)
    if held_back is not None:
        code = WaitCode.BEHIND_HIGHER_PRIORITY
        message, step = "", f"starts once {held_back.job_id}, ahead in the queue, has started"
    elif not fits_empty(request):
        code, message = WaitCode.NEVER_FITS, ", each of which would fit, but never all at once"
        step = f"asked for {asked}{message}: ask for less, or add hosts"
    else:
        code, message = WaitCode.WAITING_FOR_GPUS, ", each of which would fit, but not all at once"
        step = "running jobs must free GPUs that two groups want"
    return Reason(code=code, message=f"needs {asked}{message}", next_step=step, starts_by=starts_by)


def _explain_group(
    group: PlacementRequest,
    snapshot: Snapshot,
    candidates: CandidateIndex,
    placer: GangPlacer,
    kept: Callable[[PlacementRequest, Candidates], BlockedHosts | None],
) -> Reason:
    if group.resources.total is None:
        answers = candidates.of(group)
        return explain(group.resources, snapshot, answers, kept(group, answers))
    one, answers = _example(group, candidates)
    reason = explain(one.resources, snapshot, answers, kept(one, answers))
    free = capacities(group, snapshot, lambda request: candidates.of(request).fits)
    able = capacities(group, snapshot, lambda request: candidates.of(request).after_health)
    message = f"needs {describe(group.resources)}{_where(group.resources)}: {len(snapshot)} hosts; "
    message += (
        f"{int(free.sum())} free on {int(np.count_nonzero(free))} hosts, at most {int(free.max(initial=0))} together"
    )
    update: dict[str, object] = {"message": message}
    if reason.code is not WaitCode.NO_HOSTS:
        if can_hold(group.resources, snapshot, able).any():
            update |= {
                "code": WaitCode.WAITING_FOR_GPUS,
                "next_step": f"running jobs must free GPUs, or hosts come back: {int(able.sum())} could serve in all",
            }
        else:
            update |= {
                "code": WaitCode.NEVER_FITS,
                "next_step": _less(group.resources, snapshot, able),
            }
    return reason.model_copy(update=update)


def _example(group: PlacementRequest, candidates: CandidateIndex) -> tuple[PlacementRequest, Candidates]:
    """Return a plain request of the same kind, with its candidates."""
    request = group if group.resources.total is None else group.asking_for(group.resources.slices(1))
    return request, candidates.of(request)


def _less(resources: ResourceRequest, snapshot: Snapshot, able: np.ndarray) -> str:
    """Say what was asked, what there is and what to do. ``able``: GPUs that each host could give, by host index."""
    asked = f"asked for {describe(resources)}{_where(resources)}; "
    if too_few := too_few_chosen(resources, snapshot):
        return asked + too_few
    if unknown := unknown_level(resources, snapshot):
        return asked + unknown
    level = resources.gang_level
    if level in INSIDE_ONE_HOST:
        most = int(able.max(initial=0))
    elif level is not None and is_between_hosts(level):
        most = int(np.bincount(snapshot.domains[level], weights=able, minlength=1).max())
    else:
        most = int(able.sum())
        return f"{asked}all hosts together could give {most}: ask for at most {most} GPUs"
    else_ = f"require no {level}" if level == resources.required_level else "for less bandwidth (--min-bandwidth)"
    return f"{asked}at most {most} are to be had so: ask for at most {most} GPUs, or {else_}"


def _where(resources: ResourceRequest) -> str:
    level = resources.gang_level
    if level in INSIDE_ONE_HOST:
        return f" of one {level}"
    return f" under one {level}" if is_between_hosts(level) else ""


def kept_for(snapshot: Snapshot, hosts: NDArray[np.intp]) -> str:
    """Say for what these hosts are kept."""
    windows, wanted = snapshot.windows, set(hosts.tolist())
    found = [row for row in _in_order(snapshot) if wanted.intersection(windows.kept(row.name).hosts.tolist())]
    texts = [kind_of(row) for row in found]
    return " and ".join(texts[:NAMED_WINDOWS]) + (" and more" if len(texts) > NAMED_WINDOWS else "") or "for others"


def behind_windows(
    request: PlacementRequest, reason: Reason, snapshot: Snapshot, *, is_dated: bool
) -> dict[str, object]:
    """Return what windows change of a reason. Empty: nothing, because the job would wait without them, too.

    ``is_dated``: it has an estimated start, which respects windows.
    """
    windows = snapshot.windows
    closed, asked = windows.answer(request), reservation_of(request)
    if closed is None:
        return {}
    no_date: dict[str, object] = (
        {}
        if reason.starts_by is not None or is_dated
        else {"estimated_start": None, "estimated_between": None, "estimate": EstimateBasis.WINDOW}
    )
    if closed == ALL_CLOSED:
        own = windows.rows.get(asked or "")
        return {"code": WaitCode.WINDOW, "next_step": _not_open(request, asked or "", own, windows.now), **no_date}
    if not any(count.code == "window" for count in reason.counts) and request.is_plain:
        return {}
    found = [one for one in _in_order(snapshot) if one.name in closed]
    if not found:
        return {}
    first = found[0]
    names = sorted(snapshot.names[host_index] for host_index in windows.kept(first.name).hosts.tolist())
    where = (
        f"host {names[0]} is"
        if len(names) == 1
        else f"hosts {', '.join(sorted(names)[:NAMED_WINDOWS])}{', …' if len(names) > NAMED_WINDOWS else ''} are"
    )
    kept = f"{where} kept {kind_of(first)}"
    left_s = windows.closes_at(first) - windows.now - request.grace_s
    if first.is_open or left_s < 60:
        step = f"{kept}: wait, or for other hosts to become free"
    elif request.time_limit_s is None:
        step = f"{kept}, and this job has no time limit: give it one of at most {duration(left_s)} (--time), or wait"
    else:
        until = time_text(windows.now + holds_at_most_s(request))
        step = (
            f"{kept}; this job may hold it until {until}, with the {duration(request.grace_s)} that it has to stop: "
            f"give it a --time of at most {duration(left_s)}, or wait"
        )
    return {"code": WaitCode.WINDOW, "next_step": step, **no_date}


def _not_open(request: PlacementRequest, asked: str, own: WindowRow | None, now: float) -> str:
    """Say why the advance reservation for which the job asks is not open to it."""
    if own is None:
        return f"there is no advance reservation {asked} now: name another (jobs update --reservation), or cancel it"
    if not own.allows(request.namespace, request.user):
        return f"the advance reservation {asked} is not for jobs of {request.user} in namespace {request.namespace}"
    longest = math.inf if request.time_limit_s is None else request.time_limit_s
    if longest > own.duration_s:
        return f"{asked} lasts {duration(own.duration_s)}: give the job a time limit of at most that (--time)"
    when = span_text(own.start, own.end)
    if own.is_open and now + longest > own.end:
        again = "" if own.period_s is None else ", or wait until it begins again"
        left = duration(max(0.0, own.end - now))
        return f"the advance reservation {asked} is open {when}: give the job a --time of at most {left}{again}"
    return f"the advance reservation {asked} is open {when}: the job waits for it"


def _in_order(snapshot: Snapshot) -> list[WindowRow]:
    return sorted(snapshot.windows.rows.values(), key=lambda row: (row.start, row.name))


def too_few_chosen(resources: ResourceRequest, snapshot: Snapshot) -> str:
    """Say that the choice leaves too few of the registered hosts, and what there is. Empty: it leaves enough."""
    choice, needed = resources.host_choice, 1 if resources.total is not None else resources.hosts
    if not choice or not len(snapshot):
        return ""
    left = int(np.count_nonzero(snapshot.accepted_by(choice)))
    if left >= needed:
        return ""
    parts = [HostChoice(constraints=(text,)) for text in choice.constraints]
    parts += [HostChoice(include=choice.include, exclude=choice.exclude)] if choice.include or choice.exclude else []
    counts = [int(np.count_nonzero(snapshot.accepted_by(part))) for part in parts]
    for part, count in zip(parts, counts, strict=True):
        if count < needed:
            said = _constraint(part, snapshot, count) if part.constraints else _names(part, snapshot, count)
            return said if needed == 1 else f"{said}; {plural(needed, 'host')} are needed"
    each = ", ".join(f"{count} {part}" for part, count in zip(parts, counts, strict=True))
    return f"{plural(left, 'host')} of {len(snapshot)} meet all of it ({each}): ask for less"


def labels_there(resources: ResourceRequest, snapshot: Snapshot, hosts: NDArray[np.intp]) -> str:
    """Say what these hosts have instead of what the constraints ask for."""
    labels = [snapshot.labels[host_index] for host_index in hosts.tolist()]
    found = []
    for constraint in map(Constraint.parse, resources.constraints):
        unmet = [one for one in labels if not constraint.accepts(one)]
        if unmet:
            values = [one[constraint.label] for one in unmet if constraint.label in one]
            found.append(f"{constraint.label} is {_values(values)}" if values else f"no {constraint.label}")
    return ", ".join(found)


def _constraint(part: HostChoice, snapshot: Snapshot, count: int) -> str:
    constraint = Constraint.parse(part.constraints[0])
    values = [labels[constraint.label] for labels in snapshot.labels if constraint.label in labels]
    if constraint.excludes:
        there = "every host has" if not count else f"only {plural(count, 'host')} of {len(snapshot)} has not"
        return f"{there} label {constraint.label}={'|'.join(constraint.values)}: ask for less, or leave it out"
    if not values:
        known = sorted({label for labels in snapshot.labels for label in labels})
        near = get_close_matches(constraint.label, known, 1)
        if near:
            of_it = _values(labels[near[0]] for labels in snapshot.labels if near[0] in labels)
            return f"no host has a label {constraint.label}; the nearest is {near[0]} ({of_it})"
        there = f"; there are {_some(known)}" if known else " or any other: set node.labels on the hosts"
        return f"no host has a label {constraint.label}{there}"
    no_host = "no host has" if not count else f"only {plural(count, 'host')} has"
    return (
        f"{no_host} label {constraint}; {plural(len(values), 'host')} {'has' if len(values) == 1 else 'have'} "
        f"{constraint.label} with {_values(values)}: ask for one of these"
    )


def _names(part: HostChoice, snapshot: Snapshot, count: int) -> str:
    no_host = "no host has" if not count else f"only {plural(count, 'host')} has"
    return f"{no_host} a name that the job takes ({part}); there are {_some(sorted(snapshot.names))}"


def _values(values: Iterable[str]) -> str:
    """Return the values, those of most hosts first, with the number of hosts."""
    counted = sorted(Counter(values).items(), key=lambda one: (-one[1], one[0]))
    return _some([f"{value} ({count})" for value, count in counted])


def _some(texts: list[str]) -> str:
    return ", ".join(texts[:NAMED_LABELS]) + (", …" if len(texts) > NAMED_LABELS else "")
