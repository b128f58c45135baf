"""Everything about one job, for a terminal: what it asked for, where it is and why, or why it waits, and its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table

from gpu_platform.cli.placeholder import shown_command
from gpu_platform.cli.show import job_rows, show_waiting, tables, times
from gpu_platform.cli.terminal import safe
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.dependency import DependencyKind, IfUnmet
from gpu_platform.domain.jobs.environment import outputs_path
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.launcher import Launcher
from gpu_platform.domain.jobs.ranks import spare_slices
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest, Strategy
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import counted, duration, one_line
from gpu_platform.steps.environ import script_arguments


def job_details(
    job: Job,
    events: Sequence[Event],
    used: str | None = None,
    now: Sequence[RenderableType] = (),
    outputs_root: str | None = None,
) -> Group:
    """Everything about one job: what it asked for, where it is and why, what it uses now, what happened and when."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for label, value in _facts(job, outputs_root):
        facts.add_row(label, value)
    if used is not None:
        facts.add_row("used", used)
    if (trace_id := next((event.data["trace_id"] for event in events if "trace_id" in event.data), None)) is not None:
        facts.add_row("trace", str(trace_id))
    parts: list[RenderableType] = [facts]
    if job.reason is not None:
        parts += show_waiting.reason_parts(job.reason)
    if job.placement is not None and job.placement.scores.rows:
        parts += ["", show_waiting.score_table(job.placement.scores)]
    if now:
        parts += ["", *now]
    if events:
        parts += ["", tables.timeline(events)]
    return Group(*parts)


_Facts = Iterable[tuple[str, RenderableType]]


def _facts(job: Job, outputs_root: str | None = None) -> _Facts:
    spec, row = job.spec, job.model_dump(mode="json")
    yield "job", f"{job.id}  {spec.name}  (namespace {spec.namespace}, user {spec.user})"
    yield "state", tables.state(job.state)
    if job.retry_of is not None:
        yield "retry of", job.retry_of
    if (kind := job_rows.kind_text(row)) is not None:
        yield "kind", kind
    arguments = script_arguments(spec.command)
    words = spec.command if arguments is None else ["script", spec.name, *arguments]
    yield "command", one_line(" ".join(shown_command(words)))
    yield "asked", ", ".join([*request_lines(spec), *_options_line(spec)])
    yield from _environment_facts(job, outputs_root)
    if spec.after:
        yield "after", _after(spec)
    if (begins := job_rows.begin_text(row)) is not None:
        yield "begins", begins
    elif (retry := job_rows.retry_text(row)) is not None:
        yield "retries", retry
    if spec.deadline_at is not None:
        yield "deadline", _deadline(job, spec.deadline_at)
    if job.run_time is not None:
        yield "runs", _usually(job.run_time)
    yield from _waiting_facts(job)
    yield from _placement_facts(job)
    if job.attempt:
        yield (
            "attempts",
            f"{job.attempt}; program failed {job.user_retries} of {spec.max_retries} retries, hardware failed "
            f"{job.hardware_retries} of {spec.max_hardware_retries}, preempted {counted(job.preemptions, 'time')}",
        )
    yield from _ending_facts(job)
    yield "submitted", times.local(job.created_at)
    if job.finished_at is not None:
        yield "took", duration((job.finished_at - job.created_at).total_seconds())
    if job.workflow_url:
        yield "workflow", job.workflow_url


def _environment_facts(job: Job, outputs_root: str | None) -> _Facts:
    """What the program finds where it runs, and where its outputs are."""
    environment = job.spec.environment
    if environment is None:
        return
    if environment.upload is not None:
        yield "code", f"uploaded, {environment.upload[:12]}"
    if environment.venv is not None:
        yield "venv", environment.venv
    if environment.modules:
        yield "modules", ", ".join(environment.modules)
    if environment.container is not None:
        yield "container", environment.container
    if environment.outputs is not None:
        path = outputs_path(job.id, environment.outputs)
        yield "outputs", f"{outputs_root}/{path}" if outputs_root else f"{path}, below the outputs root of its hosts"


def _deadline(job: Job, at: datetime) -> str:
    left_s = (at - datetime.now(UTC)).total_seconds()
    return times.local(at) + (f" (in {duration(left_s)})" if left_s > 0 and not job.state.is_terminal else "")


def _after(spec: JobSpec) -> str:
    wanted = {DependencyKind.OK: "completed", DependencyKind.ANY: "ended", DependencyKind.FAIL: "failed"}
    listed = ", ".join(f"{one.job_id} {wanted[one.kind]}" for one in spec.after)
    return listed + ("; held if that can no longer be" if spec.if_unmet is IfUnmet.HOLD else "")


def _usually(expected: RunTime) -> str:
    low, middle, high = (duration(seconds) for seconds in (expected.low_s, expected.median_s, expected.high_s))
    return f"usually {middle} (80 %: {low} to {high})"


def _waiting_facts(job: Job) -> _Facts:
    if job.state is JobState.ALLOCATED:
        # The host tells nobody what it does now, so this says what may take seconds.
        yield "waits", "for the set-up on its hosts: memory of its GPUs that another job used is overwritten first"
    if job.state is JobState.PENDING and job.reason is None:
        yield "waits", "for its workflow to begin, which takes a moment; then it queues, and this says what for"
    if job.reason is None:
        return
    place = f" (place {job.reason.position} in the queue)" if job.reason.position else ""
    yield "waits", job.reason.message + place
    if job.reason.next_step:
        yield "next step", job.reason.next_step
    if (when := show_waiting.start_text(job.reason)) is not None:
        yield "starts", when


def _placement_facts(job: Job) -> _Facts:
    if job.placement is None:
        return
    spares = spare_slices(job.spec, job.placement.slices)
    for part in job.placement.slices:
        where = "spare" if part in spares else "runs on" if job.state.holds_gpus else "ran on"
        yield where, show_waiting.slice_text(part)
    yield "why there", job.placement.why
    bandwidth, decided_in = job.placement.bandwidth_gb_s, job.placement.decided_in_ms
    # A single GPU is connected to nothing.
    speed = f", {bandwidth:g} GB/s" if bandwidth else ""
    counted_in = ", its spare hosts counted in" if spares else ""
    yield "connected", f"{job.placement.level}{speed}{counted_in}; decided in {decided_in:.1f} ms"


def _ending_facts(job: Job) -> _Facts:
    """Why it failed or stopped, what was saved, and what else people should know."""
    if job.failure is not None:
        yield (
            "failure" if job.state is JobState.FAILED else "last failure",
            safe(f"{job.failure.kind}: {job.failure.message}", "red"),
        )
    if job.stopped_by is not None:
        yield "stopped" if job.state is JobState.CANCELLED else "last stop", str(job.stopped_by)
    if job.checkpoint_at is not None:
        yield "checkpoint", f"{duration((datetime.now(UTC) - job.checkpoint_at).total_seconds())} ago"
    for warning in job.warnings:
        yield "warning", safe(warning, "yellow")
    if job.exit_code is not None:
        yield "exit code", str(job.exit_code)


def request_lines(spec: JobSpec) -> list[str]:
    """What the gang needs, one group after the other."""
    if spec.groups:
        return [f"{group.name}: {', '.join(_request_line(group.gpus))}" for group in spec.groups]
    return _request_line(spec.gpus) + ([f"{counted(spec.spare_hosts, 'spare host')}"] if spec.spare_hosts else [])


def _request_line(gpus: ResourceRequest) -> list[str]:
    if gpus.total is not None:
        wants = [f"{counted(gpus.total, 'GPU')} on as few hosts as can be"]
    else:
        shape = f" x {counted(gpus.gpus_per_host, 'GPU')}" if gpus.gpus_per_host else ", no GPU"
        wants = [counted(gpus.hosts, "host") + shape]
    if gpus.share is not None:
        share = gpus.share
        wants.append(f"of each {share.mig_profile or f'{share.percent} % and {share.memory_mib} MiB'}")
    wants += [gpus.model] if gpus.model else []
    wants += [f"not {gpus.exclude_model}"] if gpus.exclude_model else []
    wants += [f">= {gpus.memory_mib} MiB"] if gpus.memory_mib else []
    wants += [f"compute capability >= {gpus.min_compute_capability}"] if gpus.min_compute_capability else []
    wants += [f"CUDA {gpus.cuda}"] if gpus.cuda else []
    wants += [f"hosts: {gpus.host_choice}"] if gpus.host_choice else []
    wants += [f"{counted(gpus.cpus_per_host, 'CPU')} a host"] if gpus.cpus_per_host else []
    wants += [f"{gpus.ram_mib_per_host} MiB a host"] if gpus.ram_mib_per_host else []
    wants += [f"{counted(gpus.cpus_per_gpu, 'CPU')} for each GPU"] if gpus.cpus_per_gpu else []
    wants += [f"{gpus.ram_mib_per_gpu} MiB of host memory for each GPU"] if gpus.ram_mib_per_gpu else []
    wants += [f">= {gpus.min_bandwidth_gb_s:g} GB/s"] if gpus.min_bandwidth_gb_s else []
    wants += [f"in one {gpus.required_level}"] if gpus.required_level else []
    wants += [f"best in one {gpus.preferred_level}"] if gpus.preferred_level else []
    wants += ["spread"] if gpus.strategy is Strategy.SPREAD else []
    return wants + (["cross-NUMA allowed"] if gpus.allow_cross_numa else [])


def _options_line(spec: JobSpec) -> list[str]:
    """How the job is treated, if that differs from the default."""
    options = [f"one rank per {'GPU' if spec.rank_per is RankPer.GPU else 'host'}"]
    options += [f"launched by {spec.launcher}"] if spec.launcher is not Launcher.PLAIN else []
    options += [f"priority {spec.priority}"] if spec.priority else []
    options += [f"at most {duration(spec.time_limit_s)}"] if spec.time_limit_s else []
    options += [] if spec.preemptible else ["never preempted"]
    options += ["goes on from its checkpoints"] if spec.checkpoints else []
    wanted = spec.checkpoint
    options += [f"a checkpoint every {duration(wanted.every_s)}"] if wanted.every_s else []
    options += [f"resumes from {wanted.resume_from}"] if wanted.resume_from else []
    options += [f"retries wait {duration(spec.retry_wait_s)} at first"] if spec.retry_wait_s else []
    longest = spec.retry_longest_wait_s
    options += [f"retries wait at most {duration(longest)}"] if longest else []
    return options
