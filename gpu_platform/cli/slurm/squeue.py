"""``squeue``: jobs that wait or run."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING

from gpu_platform.cli import session
from gpu_platform.cli.slurm import job_lists, job_rows
from gpu_platform.cli.slurm.formats import Cell, Column, letters, lines, long_names
from gpu_platform.cli.slurm.list_options import interval_s, read_options
from gpu_platform.slurm.getopt import WrongOption, table
from gpu_platform.slurm.hostlists import expand
from gpu_platform.slurm.times import written_limit, written_moment

if TYPE_CHECKING:
    from gpu_platform.client import Client

OPTIONS = table(
    "user|u= jobs|j= states|t= partition|p= account|A= qos|q= name|n= nodelist|w= format|o= Format|O= me noheader|h "
    "long|l start sort|S= array|r all|a array-unique priority|P iterate|i= help version|V verbose|v clusters|M= "
    "federation hide local sibling only-job-state steps|s? licenses|L= reservation|R= json? yaml? expand-patterns "
    "usage"
)
_REFUSED = {
    "steps": "steps are not listed: their output is in the log of the job",
    "json": "gpu-platform jobs list --json prints JSON",
    "yaml": "gpu-platform jobs list --output yaml prints YAML",
    "qos": "jobs have a priority, and no QOS by which they could be chosen",
    "licenses": "licenses are not counted",
    "sibling": "there is one cluster",
}
DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"


def _moment(name: str) -> Column:
    return Column(name, lambda job: written_moment(job.get("created_at")))


LETTERS: dict[str, Column] = {
    "i": Column("JOBID", job_rows.job_id, never_cut=True),
    "A": Column("JOBID", job_rows.raw_id, never_cut=True),
    "F": Column("ARRAY_JOB_ID", job_rows.array_job_id, never_cut=True),
    "K": Column("ARRAY_TASK_ID", job_rows.array_index),
    "P": Column("PARTITION", job_rows.partition),
    "j": Column("NAME", lambda job: job["spec"]["name"]),
    "u": Column("USER", lambda job: job["spec"]["user"]),
    "a": Column("ACCOUNT", lambda job: job["spec"]["namespace"]),
    "t": Column("ST", job_rows.compact),
    "T": Column("STATE", job_rows.state),
    "M": Column("TIME", lambda job: written_limit(job_rows.elapsed_s(job))),
    "l": Column("TIME_LIMIT", lambda job: written_limit(job["spec"].get("time_limit_s"))),
    "L": Column("TIME_LEFT", job_rows.time_left),
    "D": Column("NODES", lambda job: str(job_rows.nodes(job))),
    "C": Column("CPUS", lambda job: str(job_rows.cpus(job))),
    "b": Column("TRES_PER_NODE", job_rows.gpus_per_node),
    "m": Column("MIN_MEMORY", job_rows.memory),
    "N": Column("NODELIST", job_rows.nodelist),
    "R": Column("NODELIST(REASON)", job_rows.nodelist_or_reason),
    "r": Column("REASON", job_rows.reason),
    "S": Column("START_TIME", job_rows.start_time),
    "e": Column("END_TIME", job_rows.end_time),
    "V": _moment("SUBMIT_TIME"),
    "p": Column("PRIORITY", lambda job: f"{job_rows.priority(job) / 2**32:.14f}"),
    "Q": Column("PRIORITY", lambda job: str(job_rows.priority(job))),
    "q": Column("QOS", lambda job: "normal"),
    "E": Column("DEPENDENCY", job_rows.dependency),
    "o": Column("COMMAND", job_rows.command),
    "Z": Column("WORK_DIR", lambda job: job["spec"].get("workdir") or ""),
    "B": Column("EXEC_HOST", lambda job: next(iter(job_rows.hosts(job)), "n/a")),
    "k": Column("COMMENT", lambda job: job["id"], never_cut=True),
    "Y": Column("SCHEDNODES", lambda job: "(null)"),
    "f": Column("FEATURES", lambda job: "(null)"),
    "h": Column("OVER_SUBSCRIBE", lambda job: "OK"),
    "v": Column("RESERVATION", lambda job: job["spec"].get("reservation") or "(null)"),
    "y": Column("NICE", lambda job: "0"),
}
NAMES: dict[str, Column] = {
    "JobID": LETTERS["A"],
    "JobArrayID": LETTERS["i"],
    "ArrayJobID": LETTERS["F"],
    "ArrayTaskID": LETTERS["K"],
    "Partition": LETTERS["P"],
    "Name": LETTERS["j"],
    "UserName": LETTERS["u"],
    "Account": LETTERS["a"],
    "StateCompact": LETTERS["t"],
    "State": LETTERS["T"],
    "TimeUsed": LETTERS["M"],
    "TimeLimit": LETTERS["l"],
    "TimeLeft": LETTERS["L"],
    "NumNodes": LETTERS["D"],
    "NumCPUs": LETTERS["C"],
    "tres-per-node": LETTERS["b"],
    "tres-alloc": Column("TRES_ALLOC", job_rows.tres),
    "Gres": LETTERS["b"],
    "MinMemory": LETTERS["m"],
    "NodeList": LETTERS["N"],
    "ReasonList": LETTERS["R"],
    "Reason": LETTERS["r"],
    "StartTime": LETTERS["S"],
    "EndTime": LETTERS["e"],
    "SubmitTime": LETTERS["V"],
    "Priority": LETTERS["p"],
    "PriorityLong": LETTERS["Q"],
    "QOS": LETTERS["q"],
    "Dependency": LETTERS["E"],
    "Command": LETTERS["o"],
    "WorkDir": LETTERS["Z"],
    "BatchHost": LETTERS["B"],
    "Comment": LETTERS["k"],
    "Reservation": LETTERS["v"],
    "exit_code": Column("EXIT_CODE", lambda job: str(job.get("exit_code") or 0)),
}
_SORTS = {
    "i": lambda job: job["id"],
    "j": lambda job: job["spec"]["name"],
    "u": lambda job: job["spec"]["user"],
    "t": lambda job: job_rows.compact(job),
    "M": lambda job: job_rows.elapsed_s(job),
    "p": lambda job: job_rows.priority(job),
    "Q": lambda job: job_rows.priority(job),
    "S": lambda job: job_rows.start_time(job),
    "V": lambda job: job["created_at"],
    "P": lambda job: job_rows.partition(job),
}

USAGE = (
    "Usage: squeue [-j JOBS] [-u USERS | --me] [-t STATES] [-p PARTITIONS] [-n NAMES] [-w HOSTS]\n"
    "              [-o FORMAT | -O FIELDS | -l | --start] [-h] [-S SORT] [-i SECONDS]"
)


def run(words: list[str]) -> int:
    """Print the queue. Returns the exit code."""
    if (asked := read_options(OPTIONS, words, USAGE)) is None:
        return 0
    for name, why in _REFUSED.items():
        if name in asked:
            raise WrongOption(f"--{name}: {why}")
    every_s = interval_s(asked.get("iterate", "1"))
    while True:
        code = _print(asked)
        if "iterate" not in asked:
            return code
        time.sleep(every_s)


def _print(asked: dict[str, str]) -> int:
    cells = _cells(asked)
    if "long" in asked and "noheader" not in asked and "format" not in asked:
        session.write(f"{datetime.now():%a %b %d %H:%M:%S %Y}")
    with session.service() as client:
        found, missing = _found(client, asked)
    if missing and not found:
        session.say("slurm_load_jobs error: Invalid job id specified")
        return 1
    rows = job_lists.order(job for job in found if _is_wanted(job, asked))
    for key in reversed([part.strip() for part in asked.get("sort", "").split(",") if part.strip()]):
        letter = key.lstrip("+-")
        if letter not in _SORTS:
            raise WrongOption(f"Invalid sort specification: {key}; there are {', '.join(_SORTS)}")
        rows.sort(key=_SORTS[letter], reverse=key.startswith("-"))
    shown = lines(cells, rows, header="noheader" not in asked)
    session.write_lines(shown if "Format" in asked else map(str.rstrip, shown))
    return 0


def _cells(asked: dict[str, str]) -> list[Cell]:
    if "Format" in asked:
        return long_names(asked["Format"], NAMES)
    if "format" in asked:
        return letters(asked["format"], LETTERS)
    if "start" in asked:
        return letters(START, LETTERS)
    if "long" in asked:
        return letters(LONG, LETTERS)
    return letters(os.environ.get("SQUEUE_FORMAT") or DEFAULT, LETTERS)


def _found(client: Client, asked: dict[str, str]) -> tuple[list[job_lists.Job], list[str]]:
    states = job_lists.LIVE if "states" not in asked else job_rows.our_states(asked["states"])
    users = [job_lists.user_of(client)] if "me" in asked else _names(asked.get("user")) or [None]
    if "jobs" in asked:
        found, missing = job_lists.jobs_of(client, job_lists.ids(asked["jobs"]))
        shown = [job for job in found if states is None or job_rows.is_array(job) or job["state"] in states]
        wanted = [None] if users == [None] else users
        return [job for job in shown if wanted == [None] or job["spec"]["user"] in wanted], missing
    names: list[str | None] = [*(_names(asked.get("name")) or [None])]
    found = []
    for user in users:
        for name in names:
            found += job_lists.jobs_in(client, None if states is None else [str(one) for one in states], user, name)
            parts = job_lists.parts_of_arrays(client, user, name, ended=states is None)
            found += [job for job in parts if states is None or job_rows.is_array(job) or job["state"] in states]
    return found, []


def _is_wanted(job: job_lists.Job, asked: dict[str, str]) -> bool:
    if "states" in asked and not job_rows.has_state(job, asked["states"]):
        return False
    if "start" in asked and job_rows.state(job) != "PENDING":
        return False
    if "partition" in asked and not set(_names(asked["partition"])) & set(job_rows.partition(job).split(",")):
        return False
    if "account" in asked and job["spec"]["namespace"] not in _names(asked["account"]):
        return False
    if "reservation" in asked and job["spec"].get("reservation") not in _names(asked["reservation"]):
        return False
    if "nodelist" in asked and not set(expand(asked["nodelist"])) & set(job_rows.hosts(job)):
        return False
    if "states" not in asked and job["state"] in job_rows.ENDED:
        return False
    return "name" not in asked or job["spec"]["name"] in _names(asked["name"])


def _names(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
