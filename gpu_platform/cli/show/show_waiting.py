"""How waiting looks in a terminal: the queue, one job's reason, a dry run; and why a placed job is where it is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table

from gpu_platform.cli.show import times
from gpu_platform.cli.show.job_rows import format_indices
from gpu_platform.cli.show.tables import clock, plain_table
from gpu_platform.client.wire import DryRun
from gpu_platform.domain.array_ids import array_of, index_of
from gpu_platform.domain.jobs.job import QueueEntry
from gpu_platform.domain.jobs.placement import BlockingJob, EstimateBasis, HostSlice, Reason, ScoreTable, WaitCode
from gpu_platform.domain.jobs.ranks import spare_slices
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.texts import counted, duration


def queue_table(waiting: Iterable[QueueEntry], now: datetime | None = None) -> Table:
    """One row per waiting job, with its reason and the next step. Elements of one array that come one after the other
    have one row. ``now``: for tests."""
    now = now or datetime.now(UTC)
    table = plain_table("PLACE", "JOB", "NAME", "USER", "PRIORITY", "ASKS", "WAITS", "STARTS", "WHY / NEXT STEP")
    for together in _grouped(waiting):
        job, last = together[0], together[-1]
        reason = job.reason
        why = "not yet looked at" if reason is None else reason.message
        if reason is not None and reason.next_step:
            why += f"\n-> {reason.next_step}"
        if reason is not None and reason.holders:
            why += f"\n-> held by {_held_by(reason)}"
        table.add_row(
            str(job.position) if job is last else f"{job.position}-{last.position}",
            job.job_id if job is last else f"{job.job_id} to {index_of(last.job_id)} ({len(together)})",
            job.spec.name,
            f"{job.spec.namespace}/{job.spec.user}",
            str(job.spec.priority),
            asked(job.spec),
            duration((now - job.waiting_since).total_seconds()),
            _starts(reason, now) if reason is not None else "-",
            why,
        )
    return table


def _grouped(waiting: Iterable[QueueEntry]) -> list[list[QueueEntry]]:
    """Elements of one array that wait side by side, together; every other job alone."""
    groups: list[list[QueueEntry]] = []
    for job in waiting:
        array_id = array_of(job.job_id)
        if groups and array_id is not None and array_of(groups[-1][-1].job_id) == array_id:
            groups[-1].append(job)
        else:
            groups.append([job])
    return groups


def reason_parts(reason: Reason, now: datetime | None = None) -> list[RenderableType]:
    """All that is known about why one job waits."""
    parts: list[RenderableType] = []
    if reason.counts:
        counts = plain_table("HOSTS", "CANNOT BECAUSE", "ASKED", "BEST THERE IS")
        for count in reason.counts:
            counts.add_row(str(count.hosts), count.code.replace("_", " "), count.asked, count.available)
        parts += ["", counts]
    if reason.holders:
        holders = plain_table("HELD BY", "GPUS", "ON", "ENDS")
        for holder in reason.holders:
            hosts = ", ".join(holder.hosts)
            holders.add_row(f"{holder.job_id}#{holder.attempt}", str(holder.gpus), hosts, _ends(holder))
        if reason.more_holders:
            holders.add_row(f"and {reason.more_holders} more", "", "", "")
        parts += ["", holders]
    return parts


def start_text(reason: Reason, now: datetime | None = None) -> str | None:
    """When it starts, and how that was estimated. None: there is no date."""
    if reason.code is WaitCode.NEVER_FITS:
        return "never, unless it asks for less or hosts are added that can hold it"
    if reason.estimate is EstimateBasis.PREEMPTING and reason.estimated_start is not None:
        when = _start(reason, now or datetime.now(UTC))
        return f"estimated: {when}, when jobs are stopped for it, or up to their grace later"
    if reason.starts_by is not None:
        probably = _probably(reason, now or datetime.now(UTC))
        return f"promised: by {_start(reason, now or datetime.now(UTC))}, if jobs keep their time limits{probably}"
    if reason.estimate is EstimateBasis.PREEMPTING:
        return "as soon as the jobs that are preempted for it have stopped, at the latest after their grace"
    if reason.estimated_start is not None:
        if reason.estimate is EstimateBasis.RUN_TIMES:
            when = _start(reason, now or datetime.now(UTC)) + _between(reason, now or datetime.now(UTC))
            return f"usually: {when}, if jobs run as long as earlier ones did"
        alone = " and nobody ahead takes it" if reason.estimate is EstimateBasis.ALONE else ""
        return f"estimated: {_start(reason, now or datetime.now(UTC))}, if jobs run to their time limits{alone}"
    return None if reason.estimate is None else _NO_ESTIMATE.get(reason.estimate)


def score_table(scores: ScoreTable) -> Table:
    """The scores, the winner first. A score that is equal for all candidates decides nothing, but is part of the
    sum."""
    names = sorted({name for row in scores.rows for name in row.parts})
    table = plain_table("CANDIDATE", "SCORE", *(name.upper() for name in names))
    for row in scores.rows:
        parts = (f"{row.parts[name]:.2f}" if name in row.parts else "-" for name in names)
        table.add_row(row.candidate, f"{row.total:.2f}", *parts)
    if scores.others:
        table.add_row(f"and {scores.others} more", "", *("" for _ in names))
    return table


def dry_run(answer: DryRun, spec: JobSpec) -> Group:
    """The answer of a dry run: where and when the job would start, or why not."""
    parts: list[RenderableType] = [answer.message]
    if spec.begin_at is not None and spec.begin_at > datetime.now(UTC):
        parts.append(f"this is what would happen now; it begins at {times.local(spec.begin_at)}")
    if answer.waits_for is not None:
        parts.append(f"this is what would happen now; but first it {answer.waits_for}")
    if answer.placement is not None:
        slices = answer.placement.slices
        spares = spare_slices(spec, slices)
        parts += ["", *(slice_text(one) + (" (spare)" if one in spares else "") for one in slices)]
        if answer.placement.scores.rows:
            parts += ["", score_table(answer.placement.scores)]
    if answer.reason is not None:
        if (when := start_text(answer.reason)) is not None:
            parts.append(when)
        parts.append(f"place {answer.reason.position} in the queue")
        if answer.reason.next_step:
            parts.append(f"-> {answer.reason.next_step}")
        parts += reason_parts(answer.reason)
    if answer.preempts:
        when_stopped = "at once" if answer.preempts_at is None else f"at {clock(answer.preempts_at)}"
        parts += ["", f"{', '.join(answer.preempts)} would be stopped for it, {when_stopped}"]
    parts += [f"warning: {warning}" for warning in answer.warnings]
    return Group(*parts)


def slice_text(host_slice: HostSlice) -> str:
    """A host slice in words: ``dgx-a: GPU 0-3``, and the share of each."""
    grants = {
        grant.mig_profile or f"{grant.percent} % and {grant.memory_mib} MiB by {grant.mode}"
        for grant in host_slice.shares
    }
    of = f", {' or '.join(sorted(grants))} of each" if grants else ""
    group = f" ({host_slice.group})" if host_slice.group else ""
    if not host_slice.gpu_uuids:
        memory = f", {host_slice.ram_mib} MiB of memory" if host_slice.ram_mib else ""
        return f"{host_slice.host}{group}: {host_slice.cpus} CPU{'' if host_slice.cpus == 1 else 's'}{memory}, no GPU"
    return f"{host_slice.host}{group}: GPU {format_indices(host_slice.gpu_indices)}{of}"


def asked(spec: JobSpec) -> str:
    """The gang in a few words: ``2x8 H100``, ``trainer 8x8 + eval 1x1``."""
    if spec.groups:
        return " + ".join(f"{group.name} {_shape(group.gpus)}" for group in spec.groups)
    return _shape(spec.gpus) + (f" + {spec.spare_hosts} spare" if spec.spare_hosts else "")


def _shape(gpus: ResourceRequest) -> str:
    count = str(gpus.total) if gpus.total else f"{gpus.hosts}x{gpus.gpus_per_host}"
    words = [count] if gpus.total or gpus.hosts > 1 else [str(gpus.gpus_per_host)]
    words += [gpus.model] if gpus.model else []
    if gpus.share is not None:
        words.append(gpus.share.mig_profile or f"{gpus.share.percent}%")
    words += [f"in one {gpus.required_level}"] if gpus.required_level else []
    return " ".join(words)


def _probably(reason: Reason, now: datetime) -> str:
    at = reason.estimated_start
    if reason.estimate is not EstimateBasis.RUN_TIMES or at is None or at < now.timestamp():
        return ""
    return f"; usually {clock(at)}{_between(reason, now)}, if jobs run as long as earlier ones did"


def _between(reason: Reason, now: datetime) -> str:
    interval = _interval(reason, now)
    return f" ({interval})" if interval else ""


def _interval(reason: Reason, now: datetime) -> str:
    """The interval of the start, as waits from now. Empty: there is none."""
    if reason.estimated_between is None:
        return ""
    low, high = (duration(max(at - now.timestamp(), 0.0)) for at in reason.estimated_between)
    return f"80 %: in {low} to {high}"


def _starts(reason: Reason, now: datetime) -> str:
    """When it starts, for a table: a promise has *by* before it, and the interval stands below."""
    start, interval = _start(reason, now), _interval(reason, now)
    if start == "-":
        return start
    is_promised = reason.starts_by is not None and reason.starts_by >= now.timestamp()
    promised = "by " if is_promised and reason.estimate is not EstimateBasis.PREEMPTING else ""
    return f"{promised}{start}" + (f"\n{interval}" if interval else "")


def _held_by(reason: Reason) -> str:
    named = [f"{holder.job_id} ({counted(holder.gpus, 'GPU')}, {_ends(holder)})" for holder in reason.holders[:2]]
    more = len(reason.holders) - len(named) + reason.more_holders
    return ", ".join(named) + (f" and {more} more" if more else "")


def _start(reason: Reason, now: datetime) -> str:
    dates = [reason.starts_by, reason.estimated_start]
    if reason.estimate is EstimateBasis.PREEMPTING:
        dates.reverse()
    at = next((date for date in dates if date is not None and date >= now.timestamp()), None)
    if at is None:
        return "-"
    return f"{clock(at)} (in {duration(at - now.timestamp())})"


def _ends(holder: BlockingJob) -> str:
    if holder.ends_by is None:
        return "no time limit"
    over = holder.ends_by < time.time()
    return f"over its time limit since {clock(holder.ends_by)}" if over else f"ends by {clock(holder.ends_by)}"


_NO_ESTIMATE = {
    EstimateBasis.NO_TIME_LIMIT: "nobody can say when: jobs that hold what it needs have no time limit",
    EstimateBasis.REPAIR: "nobody can say when: hosts or GPUs must come back first",
    EstimateBasis.QUOTA: "nobody can say when: it depends on what its namespace has",
    EstimateBasis.PARTS: "estimated only where one job is asked about: see `jobs describe`",
    EstimateBasis.TOO_FAR: "nobody can say when: too many jobs are ahead",
}
