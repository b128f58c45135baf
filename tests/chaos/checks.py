"""What must hold of a cluster, whatever was done to it. Pure: facts in, violations out.

Faults excuse only what they can cause: see ``Fault.may_restart``. Every kind is planted in ``test_planted``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import combinations

from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.states import JobState
from tests.chaos.facts import RECOVERY_S, Facts, Hold, Kind, Violation
from tests.chaos.faults import NEVER_A_REASON, ONE_PATH
from tests.chaos.plan import JobPlan
from tests.chaos.together import both_seconds, seconds_together
from tests.chaos.truth import Run, Spans

SWEEP_S = 15.0
"""The platform's own sweeps find within this what was left behind."""
ITS_LEASE_ENDED = "was cut off: its lease ended"
PATHS_S = 10.0
"""Two leases of the tests: faults so near each other may take both ways to the control plane."""
LATENESS_S = 0.3
"""The observer may write so much later than it happened; where the kernel's locks prove it, nothing is allowed."""
USAGE_SLACK_S = 2.0
PROMISE_SLACK_S = 5.0


def find_violations(facts: Facts) -> list[Violation]:
    return [violation for check in CHECKS for violation in check(facts)]


def two_attempts(facts: Facts) -> list[Violation]:
    """No two attempts of one job live together, unless the job asked for ``fencing: relaxed``."""
    found: dict[tuple[str, int, int], float] = {}
    for pair in seconds_together(facts):
        if pair.seconds > (0.0 if pair.key in facts.truth.together else LATENESS_S):
            found[pair.key] = max(found.get(pair.key, 0.0), pair.seconds)
    return [
        Violation(Kind.TWO_ATTEMPTS, f"{job}, attempts {first} and {second}", seconds)
        for (job, first, second), seconds in found.items()
    ]


def gpus_twice(facts: Facts) -> list[Violation]:
    """In fact (ranks lock what they hold) and by the event log."""
    found = [Violation(Kind.GPU_TWICE, text) for text in double_holds(seen.event for seen in facts.events)]
    by_gpu: dict[str, list[Run]] = defaultdict(list)
    for run in facts.truth.runs:
        for gpu in run.gpus:
            by_gpu[gpu].append(run)
    for gpu, runs in by_gpu.items():
        for first, second in combinations(runs, 2):
            if (first.job, first.attempt) == (second.job, second.attempt):
                continue
            later = max(first, second, key=lambda run: run.begin)
            proved = (later.job, later.attempt, gpu) in facts.truth.taken
            seconds = both_seconds(facts, first, second)
            if seconds > (0.0 if proved else LATENESS_S):
                found.append(Violation(Kind.GPU_TWICE, f"{gpu}: {first.name} and {second.name}", seconds))
    return found


def ranks_repeated(facts: Facts) -> list[Violation]:
    """A rank begins once in an attempt. Only a start that a power cut took back, unacknowledged, is made again."""
    return [Violation(Kind.RANK_REPEATED, run.name) for run in facts.truth.repeated if not _was_taken_back(facts, run)]


def _was_taken_back(facts: Facts, run: Run) -> bool:
    """The power cut ended the rank, and nobody had been told that it runs."""
    told = [
        seen.before
        for seen in facts.events
        if seen.event.kind == "job.running" and (seen.event.job_id, seen.event.attempt) == (run.job, run.attempt)
    ]
    return any(
        fault.kind == "power_cut"
        and run.end is not None
        and fault.begin <= run.end <= fault.end
        and not any(at < fault.begin for at in told)
        for fault in facts.faults
    )


def ranks_unbacked(facts: Facts) -> list[Violation]:
    """A rank begins while its attempt holds its GPUs, and is gone within a sweep after they were released."""
    holds = {(hold.job, hold.attempt): hold for hold in facts.holds}
    found: list[Violation] = []
    for run in facts.truth.runs:
        hold, end = holds.get((run.job, run.attempt)), run.end or facts.now
        if hold is None:
            found.append(Violation(Kind.RANK_UNBACKED, f"{run.name} was never given GPUs", end - run.begin))
        elif run.begin > hold.released[1]:
            late = run.begin - hold.released[1]
            found.append(Violation(Kind.RANK_UNBACKED, f"{run.name} began {late:.2f} s after its GPUs were released"))
        else:
            stretches = facts.standing([run.host]).without(hold.released[1], end) if hold.released[1] < end else []
            beyond = sum(stop - begin for begin, stop in stretches)
            if beyond > SWEEP_S:
                found.append(Violation(Kind.RANK_UNBACKED, f"{run.name} outlived its allocation", beyond))
    return found


def allocations_idle(facts: Facts) -> list[Violation]:
    """Whoever holds GPUs runs something, but for a sweep's time and what faults on its way excuse."""
    runs: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in facts.truth.runs:
        runs[run.job, run.attempt].append(run)
    found: list[Violation] = []
    for hold in facts.holds:
        busy = [(run.begin, run.end or facts.now) for run in runs[hold.job, hold.attempt]]
        excused = [
            (min(fault.begin, fault.since), fault.end + RECOVERY_S)
            for fault in facts.faults
            if fault.of_the_cluster or fault.touches(hold.job, hold.hosts, hold.gpus)
        ]
        left = Spans.of(busy + excused).without(hold.reserved[1], min(hold.released[0], facts.now))
        longest = max((end - begin for begin, end in left), default=0.0)
        if longest > SWEEP_S:
            found.append(Violation(Kind.ALLOCATION_IDLE, f"{hold.job}#{hold.attempt} ran nothing", longest))
    return found


def jobs_unknown(facts: Facts) -> list[Violation]:
    return [Violation(Kind.JOB_UNKNOWN, job) for job in facts.plans if job not in facts.jobs]


def ends_uncaused(facts: Facts) -> list[Violation]:
    """A job ends as its program does, or because a user ordered it to."""
    runs: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in facts.truth.runs:
        runs[run.job, run.attempt].append(run)
    found: list[Violation] = []
    for job_id, plan in facts.plans.items():
        if (job := facts.jobs.get(job_id)) is None:
            continue
        if not ended_as_planned(job, plan, stopped=job_id in facts.stopped):
            text = f"{job_id} {plan} ended {job.state} {job.failure}, retries {job.user_retries}"
            found.append(Violation(Kind.END_UNCAUSED, text))
        last = runs[job_id, job.attempt]
        if job.state is JobState.COMPLETED and not (last and all(run.exit_code == 0 for run in last)):
            codes = [run.exit_code for run in last]
            text = f"{job_id} COMPLETED in attempt {job.attempt}, whose ranks ended {codes or 'never: none ran'}"
            found.append(Violation(Kind.END_UNCAUSED, text))
    return found


def restarts_unjustified(facts: Facts) -> list[Violation]:
    """Each attempt after the first has a reason: its program failed, or a fault was on its way."""
    found: list[Violation] = []
    holds = {(hold.job, hold.attempt): hold for hold in facts.holds}
    failed = {(run.job, run.attempt) for run in facts.truth.runs if run.exit_code}
    ordered = {
        (seen.event.job_id, seen.event.attempt)
        for seen in facts.events
        if seen.event.kind == "job.preempted" and seen.event.actor == "scheduler"
    }
    for hold in holds.values():
        if (hold.job, hold.attempt + 1) not in holds or (hold.job, hold.attempt) in failed | ordered:
            continue
        reasons = (
            fault
            for fault in facts.faults
            if fault.may_restart(hold.job, hold.hosts, hold.gpus)
            and fault.overlaps(hold.reserved[0], hold.released[1], aftermath_s=RECOVERY_S)
            and not (fault.kind in ONE_PATH and fault.is_alone(facts.faults, PATHS_S))
        )
        if next(reasons, None) is None and not (_nobody_could_tell(facts, hold) or _was_struck_before(facts, hold)):
            where = ", ".join(sorted(hold.hosts))
            found.append(Violation(Kind.RESTART_UNJUSTIFIED, f"{hold.job}#{hold.attempt} on {where} was given up"))
    return found


def _nobody_could_tell(facts: Facts, hold: Hold) -> bool:
    """Did its host end it as one that is cut off, when the control plane and half of the hosts were away at once?

    More than half of all hosts must say that they do not hear it either: else it may be the only one.
    """
    told = (
        str(seen.event.data)
        for seen in facts.events
        if (seen.event.job_id, seen.event.attempt) == (hold.job, hold.attempt)
    )
    if not any(ITS_LEASE_ENDED in text for text in told):
        return False
    hosts = {seen.event.host for seen in facts.events if seen.event.kind == "host.registered"}
    end = hold.released[1]
    near = [fault for fault in facts.faults if fault.overlaps(end - 2 * PATHS_S, end)]
    away = {host for fault in near if fault.kind not in NEVER_A_REASON for host in fault.hosts} - hold.hosts
    return any(fault.of_the_cluster for fault in near) and 2 * len(hosts - away) <= len(hosts)


def _was_struck_before(facts: Facts, hold: Hold) -> bool:
    """Does it report no more faults of its GPUs than there were? A host that was away notices them when it is back."""
    told = {
        seen.event.data.get("fault_id"): seen.event.gpu_uuid
        for seen in facts.events
        if seen.event.kind == "gpu.fault" and seen.event.gpu_uuid in hold.gpus and seen.before <= hold.released[1]
    }
    struck = Counter(uuid for fault in facts.faults for uuid in fault.gpus if fault.begin <= hold.released[1])
    known = Counter(told.values())
    ours = {
        seen.event.gpu_uuid
        for seen in facts.events
        if seen.event.kind == "gpu.fault" and (seen.event.job_id, seen.event.attempt) == (hold.job, hold.attempt)
    }
    return any(known[uuid] <= struck[uuid] for uuid in ours & hold.gpus)


def attempts_uncounted(facts: Facts) -> list[Violation]:
    """As many attempts as the job's own counters give reasons for; who begins a job again may not know all of them."""
    found: list[Violation] = []
    log = [*facts.events, *facts.forgotten]
    begun = Counter(seen.event.job_id for seen in log if seen.event.kind == "job.begun_again")
    for job in facts.jobs.values():
        tries = 1 + job.user_retries + job.hardware_retries + job.preemptions
        if job.state is not JobState.CANCELLED and not tries <= job.attempt <= tries + begun[job.id]:
            text = f"{job.id} has {job.attempt} attempts for {tries} reasons"
            found.append(Violation(Kind.RESTART_UNJUSTIFIED, text))
    return found


def promises_broken(facts: Facts) -> list[Violation]:
    """What was promised a date starts by it, or there was a fault before it."""
    starts: dict[str, list[float]] = defaultdict(list)
    for hold in facts.holds:
        starts[hold.job].append(hold.reserved[0])
    found: dict[str, Violation] = {}
    for promise in facts.promises:
        started = min((at for at in starts[promise.job] if at > promise.seen), default=facts.now)
        late = started - promise.due
        disturbed = any(fault.overlaps(promise.seen - RECOVERY_S, started) for fault in facts.faults)
        if late > PROMISE_SLACK_S and not disturbed and promise.job not in facts.stopped:
            found[promise.job] = Violation(Kind.PROMISE_BROKEN, f"{promise.job} started later than promised", late)
    return list(found.values())


def usage_wrong(facts: Facts) -> list[Violation]:
    """Every attempt that held GPUs has its GPU-seconds: no fewer than its ranks lived, as many as it held them."""
    lived: dict[tuple[str, int], float] = defaultdict(float)
    ends = {(hold.job, hold.attempt): hold.released[1] for hold in facts.holds}
    for run in facts.truth.runs:
        end = min(run.end or facts.now, ends.get((run.job, run.attempt), math.inf))
        lived[run.job, run.attempt] += max(0.0, end - run.begin) * len(run.gpus)
    found: list[Violation] = []
    for hold in facts.holds:
        key, name = (hold.job, hold.attempt), f"{hold.job}#{hold.attempt}"
        if math.isinf(hold.released[1]) or facts.is_forgotten(hold.reserved[0], hold.released[1]):
            continue
        if key not in facts.usage:
            found.append(Violation(Kind.USAGE_WRONG, f"{name} has no usage"))
            continue
        count, told = len(hold.gpus), facts.usage[key].gpu_seconds
        slack = count * (USAGE_SLACK_S + _clock_slack(facts, hold))
        least = max((hold.released[0] - hold.reserved[1]) * count, lived[key]) - slack
        most = (hold.released[1] - hold.reserved[0]) * count + slack
        if not least <= told <= most:
            text = f"{name}: {told:.1f} GPU-seconds, not {least:.1f} to {most:.1f}"
            found.append(Violation(Kind.USAGE_WRONG, text))
    return found


CHECKS: tuple[Callable[[Facts], list[Violation]], ...] = (
    two_attempts,
    gpus_twice,
    ranks_repeated,
    ranks_unbacked,
    allocations_idle,
    jobs_unknown,
    ends_uncaused,
    restarts_unjustified,
    attempts_uncounted,
    promises_broken,
    usage_wrong,
)


# ---- what the checks share ----


def ended_as_planned(job: Job, plan: JobPlan, *, stopped: bool) -> bool:
    if stopped and job.state is JobState.CANCELLED:
        return True
    if plan.endless:
        return False
    if plan.exit_code == 0:
        return job.state is JobState.COMPLETED
    return (
        job.state is JobState.FAILED
        and job.failure is not None
        and job.failure.kind is FailureKind.USER
        and (job.exit_code, job.user_retries) == (plan.exit_code, plan.max_retries)
    )


def double_holds(log: Iterable[Event]) -> list[str]:
    """GPUs that the event log gives to an attempt while another one has them, or that are never given back."""
    holder: dict[str, str] = {}
    found: list[str] = []
    for event in log:
        attempt = f"{event.job_id}#{event.attempt}"
        for uuid in event.data["gpus"] if event.kind.startswith("gang.") else ():
            if event.kind == "gang.reserved":
                if uuid in holder:
                    found.append(f"{uuid}: {attempt} reserved it while {holder[uuid]} held it")
                holder[uuid] = attempt
            elif holder.pop(uuid, None) != attempt:
                found.append(f"{uuid}: {attempt} released it without holding it")
    return found + [f"{uuid}: {attempt} never released it" for uuid, attempt in holder.items()]


def _clock_slack(facts: Facts, hold: Hold) -> float:
    """How far the control plane's own times may be off: it stood still, or its clock was changed."""
    if any("clock" in fault.kind and fault.of_the_cluster for fault in facts.faults):
        return math.inf
    faults = [f for f in facts.faults if f.of_the_cluster and f.overlaps(hold.reserved[0], hold.released[1])]
    return sum(min(fault.end, facts.now) - fault.begin for fault in faults)
