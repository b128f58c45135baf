"""Jobs and arrays as Slurm's commands show them, made from the service's JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpu_platform.domain.array_ids import array_of, index_of
from gpu_platform.slurm.hostlists import compress
from gpu_platform.slurm.ids import number_of, shown_id
from gpu_platform.slurm.times import written_limit, written_moment
from gpu_platform.steps.environ import FILE, script_arguments

Job = Mapping[str, Any]

COMPACT = {
    "PENDING": "PD",
    "CONFIGURING": "CF",
    "RUNNING": "R",
    "COMPLETED": "CD",
    "CANCELLED": "CA",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "DEADLINE": "DL",
    "REQUEUED": "RQ",
    "SUSPENDED": "S",
    "COMPLETING": "CG",
    "PREEMPTED": "PR",
    "OUT_OF_MEMORY": "OOM",
    "BOOT_FAIL": "BF",
}
"""Slurm's state -> its short name. Those that no job here has are there for ``--states``."""
_STATES = {
    "PENDING": "PENDING",
    "QUEUED": "PENDING",
    "PREEMPTED": "PENDING",  # it waits to go on
    "ALLOCATED": "CONFIGURING",
    "STARTING": "CONFIGURING",
    "RUNNING": "RUNNING",
    "COMPLETED": "COMPLETED",
    "CANCELLED": "CANCELLED",
    "FAILED": "FAILED",
}
_FAILURES = {"time_limit": "TIMEOUT", "hardware": "NODE_FAIL", "deadline": "DEADLINE"}
_REASONS = {
    "waiting_for_gpus": "Resources",
    "behind_higher_priority": "Priority",
    "no_hosts": "ReqNodeNotAvail",
    "never_fits": "BadConstraints",
    "over_quota": "AssocGrpGRES",
    "dependency": "Dependency",
    "held": "JobHeldUser",
}
"""Our code of a reason -> Slurm's word."""
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


def our_states(names: str) -> list[str] | None:
    """Our states for ``PD,running``; None: all. Raises ``ValueError`` for a state that Slurm does not have."""
    found: set[str] = set()
    for name in (name.strip().upper() for name in names.split(",") if name.strip()):
        if name == "ALL":
            return None
        long = next((state for state, short in COMPACT.items() if name in (state, short)), None)
        if long is None:
            raise ValueError(f"Invalid job state specified: {name}; valid are {', '.join(sorted(COMPACT))}")
        found |= {ours for ours, slurms in _STATES.items() if slurms == long}
        if long in _FAILURES.values():
            found.add("FAILED")
    return sorted(found)


def has_state(job: Job, names: str) -> bool:
    """True if the job has one of these states: one of ours may be several of Slurm's."""
    wanted = {name.strip().upper() for name in names.split(",")}
    return "ALL" in wanted or bool(wanted & {state(job), compact(job)})


def is_array(job: Job) -> bool:
    """True for an array, false for a job and an element."""
    return "counts" in job


def state(job: Job) -> str:
    """``RUNNING``; of a failed job what made it fail, as Slurm says it."""
    if is_array(job):
        return "PENDING" if job["state"] in ("PENDING", "RUNNING") else str(job["state"])
    if job["state"] == "FAILED":
        return _FAILURES.get(str((job.get("failure") or {}).get("kind")), "FAILED")
    return _STATES.get(job["state"], str(job["state"]))


def compact(job: Job) -> str:
    """``R``."""
    return COMPACT.get(state(job), "?")


def job_id(job: Job) -> str:
    """The id: of an element ``ARRAY_INDEX``; of an array, the elements that are still to come in brackets."""
    if not is_array(job):
        return shown_id(job["id"])
    bound = f"%{job['array']['at_once']}" if job["array"].get("at_once") else ""
    return f"{number_of(job['id'])}_[{job.get('waiting_indices') or job['array']['indices']}{bound}]"


def array_job_id(job: Job) -> str:
    """The array of an element; else the job itself."""
    return number_of(array_of(job["id"]) or str(job["id"]))


def raw_id(job: Job) -> str:
    """The number that is this job's alone, also if it is an element: its ``SLURM_JOB_ID``."""
    return number_of(job["id"])


def array_index(job: Job) -> str:
    """The index of an element; ``N/A`` for others."""
    return "N/A" if array_of(job["id"]) is None else str(index_of(job["id"]))


def hosts(job: Job) -> list[str]:
    """The hosts that it has or had last."""
    placement = job.get("placement")
    return [] if placement is None else list(dict.fromkeys(one["host"] for one in placement["slices"]))


def nodelist(job: Job) -> str:
    """Its hosts, while it has them; of an ended job those that it had last."""
    return "" if state(job) == "PENDING" else compress(hosts(job))


def nodes(job: Job) -> int:
    """How many hosts it has or asks for."""
    return len(hosts(job)) or sum(one["hosts"] for one in _requests(job))


def _requests(job: Job) -> list[Mapping[str, Any]]:
    groups = job["spec"].get("groups") or []
    return [group["gpus"] for group in groups] or [job["spec"]["gpus"]]


def gpus(job: Job) -> int:
    """GPUs of the job."""
    return sum(
        one["total"] if one.get("total") is not None else one["hosts"] * one["gpus_per_host"] for one in _requests(job)
    )


def gpus_per_node(job: Job) -> str:
    """``gres/gpu:h100:4``, or ``N/A``."""
    first = _requests(job)[0]
    each = first["gpus_per_host"] if first.get("total") is None else first["total"]
    if not each:
        return "N/A"
    model = (first.get("model") or "").replace(" ", "_")
    return f"gres/gpu:{model}:{each}" if model else f"gres/gpu:{each}"


def cpus(job: Job) -> int:
    """CPUs that it asked for; one for each host where it asked for none."""
    placement = job.get("placement")
    if placement is not None and (given := sum(one.get("cpus") or 0 for one in placement["slices"])):
        return int(given)
    return sum(max(1, one.get("cpus_per_host") or 0) * one["hosts"] for one in _requests(job))


def memory(job: Job) -> str:
    """Memory of each host: ``64G``; ``0`` where it asked for none."""
    mib = int(_requests(job)[0].get("ram_mib_per_host") or 0)
    return f"{mib // 1024}G" if mib and mib % 1024 == 0 else f"{mib}M" if mib else "0"


def tres(job: Job) -> str:
    """``cpu=8,mem=64G,node=2,gres/gpu=8``."""
    parts = [f"cpu={cpus(job)}"]
    if memory(job) != "0":
        parts.append(f"mem={memory(job)}")
    parts.append(f"node={nodes(job)}")
    if gpus(job):
        parts.append(f"gres/gpu={gpus(job)}")
    return ",".join(parts)


def reason(job: Job) -> str:
    """Why it waits, in one word as Slurm has them; ``None`` for a job that does not wait."""
    if is_array(job):
        if (job.get("reason") or {}).get("code"):
            return _word(job["reason"]["code"])
        return "JobArrayTaskLimit" if job["array"].get("at_once") else "Resources"
    if state(job) != "PENDING":
        failed = {"TIMEOUT": "TimeLimit", "NODE_FAIL": "NodeDown", "FAILED": "NonZeroExitCode", "DEADLINE": "DeadLine"}
        return failed.get(state(job), "None")
    if job.get("reason") is not None:
        return _word(job["reason"]["code"])
    if (begin := _time(job["spec"].get("begin_at"))) is not None and begin > datetime.now(UTC):
        return "BeginTime"
    return "BeginTime" if job.get("retry_at") else "None"


def _word(code: str) -> str:
    return _REASONS.get(code, "Resources")


def nodelist_or_reason(job: Job) -> str:
    """Its hosts, or why it waits: ``(Resources)``."""
    if state(job) in ("PENDING", "TIMEOUT", "NODE_FAIL", "FAILED", "DEADLINE"):
        return f"({reason(job)})"
    return nodelist(job)


def elapsed_s(job: Job) -> float:
    """How long its attempt runs, or ran."""
    started = _time(job.get("started_at"))
    if started is None or state(job) == "PENDING":
        return 0.0
    return max(0.0, ((_time(job.get("finished_at")) or datetime.now(UTC)) - started).total_seconds())


def time_left(job: Job) -> str:
    """How much of its limit is left."""
    limit = job["spec"].get("time_limit_s")
    return "UNLIMITED" if limit is None else written_limit(limit - elapsed_s(job))


def start_time(job: Job) -> str:
    """When it started or, as the scheduler told it, will start; ``N/A``."""
    if state(job) != "PENDING" and job.get("started_at"):
        return written_moment(job["started_at"])
    why = job.get("reason") or {}
    for seconds in (why.get("starts_by"), why.get("estimated_start")):
        if seconds is not None:
            return written_moment(datetime.fromtimestamp(seconds, UTC))
    for moment in (job.get("retry_at"), job["spec"].get("begin_at")):
        if moment is not None:
            return written_moment(moment)
    return "N/A"


def end_time(job: Job) -> str:
    """When it ended, or must have ended."""
    if job.get("finished_at"):
        return written_moment(job["finished_at"])
    started, limit = _time(job.get("started_at")), job["spec"].get("time_limit_s")
    if started is None or limit is None or state(job) == "PENDING":
        return "N/A"
    return written_moment(datetime.fromtimestamp(started.timestamp() + limit, UTC))


def exit_code(job: Job) -> str:
    """``2:0``: its exit code, and the signal that ended it."""
    code = job.get("exit_code") or 0
    if not code and state(job) == "FAILED":
        code = (job.get("failure") or {}).get("exit_code") or 1
    return f"0:{code - 128}" if 128 < code <= 192 else f"{code}:0"


def partition(job: Job) -> str:
    """The partition that it asked for, by a constraint on the label; ``gpu``: none."""
    for one in _requests(job)[0].get("constraints") or ():
        label, _, value = one.partition("=")
        if label == "partition":
            return str(value).replace("|", ",")
    return "gpu"


def dependency(job: Job) -> str:
    """``afterok:j-1,afterany:j-2``; ``(null)``: none."""
    words = {"ok": "afterok", "any": "afterany", "fail": "afternotok", "each": "aftercorr"}
    found = [
        f"{words.get(one['kind'], one['kind'])}:{shown_id(one['job_id'])}" for one in job["spec"].get("after") or ()
    ]
    return ",".join(found) or "(null)"


def command(job: Job) -> str:
    """The program; of a script its name."""
    words = job["spec"]["command"]
    if (arguments := script_arguments(words)) is not None:
        return " ".join([of_own_script(job, FILE) or job["spec"]["name"], *arguments])
    return " ".join(words)


def of_own_script(job: Job, name: str) -> str | None:
    """A variable of the script that runs this command, if it is this job's. The service does not know its paths."""
    return os.environ.get(name) if os.environ.get("GPU_PLATFORM_JOB_ID") == job["id"] else None


def priority(job: Job) -> int:
    """Slurm's priorities are never below 0, and 0 is a held job."""
    if reason(job).startswith("JobHeld"):
        return 0
    return 1001 + int(job["spec"].get("priority") or 0)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
