"""``sacct``: jobs that ran, also those that have ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from gpu_platform.cli import session
from gpu_platform.cli.slurm import job_lists, job_rows
from gpu_platform.cli.slurm.formats import Column, Row, lines, of_sacct
from gpu_platform.cli.slurm.list_options import read_options
from gpu_platform.slurm.getopt import WrongOption, table
from gpu_platform.slurm.hostlists import expand
from gpu_platform.slurm.times import read_moment, written_long, written_moment

if TYPE_CHECKING:
    from gpu_platform.client import Client

OPTIONS = table(
    "jobs|j= user|u= uid= accounts|A= starttime|S= endtime|E= state|s= format|o= name= partition|r= qos|q= nodelist|N= "
    "allocations|X parsable|p parsable2|P noheader|n allusers|a brief|b long|l delimiter= "
    "helpformat|e help|h version|V "
    "duplicates|D units= noconvert truncate|T array cluster|M= clusters= federation local|L verbose|v json? yaml? "
    "completion|c usage expand-patterns"
)
DEFAULT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
BRIEF = "jobid,state,exitcode"
LONG = (
    "jobid,jobname,partition,account,user,state,exitcode,submit,start,end,elapsed,timelimit,nnodes,"
    "ncpus,alloctres,nodelist"
)


def _state(job: Row) -> str:
    stopped = job.get("stopped_by")
    if job_rows.state(job) == "CANCELLED" and stopped is not None:
        return f"CANCELLED by {stopped['actor'].rpartition(':')[2]}"
    return job_rows.state(job)


def _column(name: str, value: Callable[[Row], str], width: int = 10, *, never_cut: bool = False) -> Column:
    return Column(name, value, width, never_cut)


_EMPTY = (
    "MaxRSS",
    "AveRSS",
    "MaxVMSize",
    "TotalCPU",
    "UserCPU",
    "SystemCPU",
    "CPUTime",
    "CPUTimeRAW",
    "AveCPU",
    "NTasks",
    "AdminComment",
    "ConsumedEnergy",
    "ConsumedEnergyRaw",
    "TRESUsageInAve",
    "TRESUsageInMax",
    "TRESUsageInTot",
)
"""What tools about efficiency ask for, and what is kept in another way: gpu-platform usage."""


def _started(job: Row) -> str | None:
    return job.get("started_at") if job_rows.state(job) != "PENDING" else None


COLUMNS: dict[str, Column] = {
    "JobID": _column("JobID", job_rows.job_id, -12, never_cut=True),
    "JobIDRaw": _column("JobIDRaw", job_rows.raw_id, -12, never_cut=True),
    "JobName": _column("JobName", lambda job: job["spec"]["name"]),
    "Partition": _column("Partition", job_rows.partition),
    "Account": _column("Account", lambda job: job["spec"]["namespace"]),
    "User": _column("User", lambda job: job["spec"]["user"], 9),
    "QOS": _column("QOS", lambda job: "normal"),
    "Cluster": _column("Cluster", lambda job: "gpu-platform"),
    "State": _column("State", _state),
    "ExitCode": _column("ExitCode", job_rows.exit_code, 8),
    "DerivedExitCode": _column("DerivedExitCode", job_rows.exit_code, 15),
    "Submit": _column("Submit", lambda job: written_moment(job.get("created_at")), 19),
    "Eligible": _column("Eligible", lambda job: written_moment(job.get("queued_at")), 19),
    "Start": _column("Start", lambda job: written_moment(_started(job)), 19),
    "End": _column("End", lambda job: written_moment(job.get("finished_at")), 19),
    "Elapsed": _column("Elapsed", lambda job: written_long(job_rows.elapsed_s(job))),
    "ElapsedRaw": _column("ElapsedRaw", lambda job: str(int(job_rows.elapsed_s(job)))),
    "Timelimit": _column("Timelimit", lambda job: written_long(job["spec"].get("time_limit_s"))),
    "TimelimitRaw": _column(
        "TimelimitRaw", lambda job: str((job["spec"].get("time_limit_s") or 0) // 60 or "UNLIMITED"), 12
    ),
    "NNodes": _column("NNodes", lambda job: str(job_rows.nodes(job)), 8),
    "AllocNodes": _column("AllocNodes", lambda job: str(len(job_rows.hosts(job)))),
    "NCPUS": _column("NCPUS", lambda job: str(job_rows.cpus(job))),
    "AllocCPUS": _column("AllocCPUS", lambda job: str(job_rows.cpus(job))),
    "ReqCPUS": _column("ReqCPUS", lambda job: str(job_rows.cpus(job)), 8),
    "ReqMem": _column("ReqMem", job_rows.memory),
    "ReqTRES": _column("ReqTRES", job_rows.tres),
    "AllocTRES": _column("AllocTRES", lambda job: job_rows.tres(job) if job_rows.hosts(job) else ""),
    "NodeList": _column("NodeList", lambda job: job_rows.nodelist(job) or "None assigned", 15),
    "Priority": _column("Priority", lambda job: str(job_rows.priority(job))),
    "Reason": _column("Reason", job_rows.reason, 22),
    "WorkDir": _column("WorkDir", lambda job: job["spec"].get("workdir") or "", 20),
    "SubmitLine": _column("SubmitLine", job_rows.command, 20),
    "Comment": _column("Comment", lambda job: job["id"], never_cut=True),
    "Restarts": _column("Restarts", lambda job: str(max(0, (job.get("attempt") or 1) - 1)), 8),
    **{name: _column(name, lambda job: "") for name in _EMPTY},
}
"""What steps used is not kept by step: columns such as MaxRSS are empty. Usage is in gpu-platform jobs describe."""

_ADDING = ("jobs", "user", "uid", "accounts", "state", "name", "partition", "nodelist")

USAGE = "Usage: sacct [-j JOBS] [-u USERS | -a] [-S TIME] [-E TIME] [-s STATES] [-o FIELDS] [-X] [-P | -p] [-n]"


def run(words: list[str]) -> int:
    """Print the jobs. Returns the exit code."""
    if (asked := read_options(OPTIONS, words, USAGE, adding=_ADDING)) is None:
        return 0
    if "helpformat" in asked:
        session.write("\n".join(COLUMNS))
        return 0
    for name in ("json", "yaml"):
        if name in asked:
            raise WrongOption(f"--{name}: gpu-platform jobs list --output {name} prints it")
    if "qos" in asked:
        raise WrongOption("--qos: jobs have a priority, and no QOS by which they could be chosen")
    if "uid" in asked:
        asked["user"] = asked["uid"]
    delimiter = asked.get("delimiter", "|") if "parsable" in asked or "parsable2" in asked else None
    fields = (
        asked.get("format")
        or os.environ.get("SACCT_FORMAT")
        or (BRIEF if "brief" in asked else LONG if "long" in asked else DEFAULT)
    )
    cells = of_sacct(fields, COLUMNS, delimiter, "parsable" in asked)
    with session.service() as client:
        rows = job_lists.order(_found(client, asked))
    shown = list(lines(cells, rows, header="noheader" not in asked))
    if delimiter is None and "noheader" not in asked:
        rule = [("-" * (cell.width or 0)) if cell.column is not None else cell.text for cell in cells]
        shown.insert(1, "".join(rule))
    session.write_lines(shown)
    return 0


def _found(client: Client, asked: dict[str, str]) -> Iterable[job_lists.Job]:
    now = datetime.now().astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    since = read_moment(asked["starttime"], now, past=True) if "starttime" in asked else None
    until = read_moment(asked["endtime"], now, past=True) if "endtime" in asked else None
    if "jobs" in asked:
        found, _ = job_lists.jobs_of(client, job_lists.ids(asked["jobs"]))
    else:
        since = since or midnight
        states = job_rows.our_states(asked["state"]) if "state" in asked else None
        names = _names(asked.get("name")) or [None]
        users = [None] if "allusers" in asked else _names(asked.get("user")) or [job_lists.user_of(client)]
        found = []
        for user in users:
            for name in names:
                found += _since(job_lists.jobs_in(client, states, user, name), since)
                found += job_lists.parts_of_arrays(client, user, name, ended=True, since=since)
    return [job for job in found if _is_wanted(job, asked) and _overlaps(job, since, until)]


def _since(jobs: Iterable[job_lists.Job], since: datetime) -> list[job_lists.Job]:
    """Jobs that ended after ``since``, or have not ended. Old jobs may still run, so all are looked at."""
    return [
        job for job in jobs if job.get("finished_at") is None or datetime.fromisoformat(job["finished_at"]) >= since
    ]


def _overlaps(job: job_lists.Job, since: datetime | None, until: datetime | None) -> bool:
    ended = job.get("finished_at")
    if since is not None and ended is not None and datetime.fromisoformat(ended) < since:
        return False
    return until is None or datetime.fromisoformat(job["created_at"]) <= until


def _is_wanted(job: job_lists.Job, asked: dict[str, str]) -> bool:
    if "state" in asked and not job_rows.has_state(job, asked["state"]):
        return False
    if "accounts" in asked and job["spec"]["namespace"] not in _names(asked["accounts"]):
        return False
    if "partition" in asked and not set(_names(asked["partition"])) & set(job_rows.partition(job).split(",")):
        return False
    if "nodelist" in asked and not set(expand(asked["nodelist"])) & set(job_rows.hosts(job)):
        return False
    if "user" in asked and job["spec"]["user"] not in _names(asked["user"]):
        return False
    return "name" not in asked or job["spec"]["name"] in _names(asked["name"])


def _names(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
