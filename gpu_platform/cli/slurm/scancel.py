"""``scancel``: ends jobs, arrays and elements."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpu_platform.cli import session
from gpu_platform.cli.slurm import entry, job_lists, job_rows
from gpu_platform.cli.slurm.list_options import check_filters
from gpu_platform.domain.array_ids import array_of, index_of, is_array_id
from gpu_platform.domain.errors import Forbidden, IllegalTransition, InvalidRequest, NotFound
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.texts import printable
from gpu_platform.slurm.getopt import WrongOption, table
from gpu_platform.slurm.ids import shown_id

if TYPE_CHECKING:
    from gpu_platform.client import Client

OPTIONS = table(
    "user|u= name|n= jobname= state|t= partition|p= account|A= qos|q= nodelist|w= me quiet|Q "
    "verbose|v signal|s= batch|b "
    "full|f interactive|i hurry|H ctld cron wckey= reservation|R= sibling= clusters|M= version|V help|h usage"
)


_REFUSED = {
    "qos": "jobs have a priority, and no QOS by which they could be chosen",
    "wckey": "jobs have none",
    "cron": "there is no scrontab: gpu-platform schedules",
    "interactive": "nothing is asked for: name the jobs",
    "sibling": "there is one cluster",
}
"""Each of them ends fewer jobs than without it, so it is never passed over."""


def run(words: list[str]) -> int:
    """Cancel what the words name. Returns the exit code: 1 if something could not be cancelled."""
    given, rest = OPTIONS.read(words, anywhere=True)
    asked = {one.name: one.value for one in given}
    if "version" in asked:
        session.write(entry.VERSION)
        return 0
    if "help" in asked or "usage" in asked:
        session.write(
            "Usage: scancel [-u USER | --me] [-n NAME] [-t STATE] [-p PARTITION] [-s SIGNAL] [JOB[_ELEMENT]]..."
        )
        return 0
    for name, why in _REFUSED.items():
        if name in asked:
            raise WrongOption(f"--{name}: {why}")
    check_filters(OPTIONS, asked)
    how = _verb(asked.get("signal"))
    by_filter = [
        name
        for name in ("user", "me", "name", "jobname", "state", "partition", "account", "nodelist", "reservation")
        if name in asked
    ]
    if not rest and not by_filter:
        raise WrongOption("No job identification provided")
    wanted = [one for word in rest for one in job_lists.ids(word)]
    with session.service() as client:
        if by_filter:
            wanted = _matching(client, asked, wanted)
        return _cancel_all(client, how, wanted, quiet="quiet" in asked)


def _verb(signal: str | None) -> str:
    name = (signal or "TERM").upper().removeprefix("SIG")
    if name in ("KILL", "9"):
        return "kill"
    if name in ("TERM", "15", "INT", "2"):
        return "cancel"
    raise WrongOption(
        f"--signal={signal}: a running job gets SIGTERM and then SIGKILL; other signals are sent from inside "
        "(gpu-platform jobs exec JOB -- pkill -USR1 …)"
    )


def _matching(client: Client, asked: dict[str, str], among: list[str]) -> list[str]:
    user = job_lists.user_of(client) if "me" in asked else asked.get("user")
    name = asked.get("name", asked.get("jobname"))
    states = job_lists.LIVE if "state" not in asked else job_rows.our_states(asked["state"])
    jobs = job_lists.jobs_in(client, None if states is None else [str(one) for one in states], user, name)
    found = [job["id"] for job in jobs if _is_wanted(job, asked)]
    if {"state", "partition", "account", "nodelist", "reservation"} & set(asked):
        for part in job_lists.parts_of_arrays(client, user, name):
            if _is_wanted(part, asked):
                found += _elements_to_come(part) if job_rows.is_array(part) else [part["id"]]
    else:
        # A whole array ends at once, with the elements that are still to come.
        found = [*job_lists.open_arrays(client, user, name), *found]
    return [one for one in found if not among or one in among or array_of(one) in among]


def _is_wanted(job: job_lists.Job, asked: dict[str, str]) -> bool:
    if job["state"] in job_rows.ENDED or ("state" in asked and not job_rows.has_state(job, asked["state"])):
        return False
    if "partition" in asked and asked["partition"] not in job_rows.partition(job).split(","):
        return False
    if "account" in asked and job["spec"]["namespace"] != asked["account"]:
        return False
    if "reservation" in asked and job["spec"].get("reservation") != asked["reservation"]:
        return False
    return "nodelist" not in asked or asked["nodelist"] in job_rows.hosts(job)


def _elements_to_come(array: job_lists.Job) -> list[str]:
    """The elements for which an array has one line, because they have no row yet."""
    return [f"{array['id']}.{index}" for index in IndexSet.parse(array["waiting_indices"])]


def _cancel_all(client: Client, how: str, wanted: list[str], *, quiet: bool) -> int:
    failed = 0
    elements: dict[str, list[int]] = defaultdict(list)
    for one in wanted:
        if (array := array_of(one)) is not None:
            elements[array].append(index_of(one))
    orders = [(one, None) for one in wanted if array_of(one) is None]
    orders += [(array, str(IndexSet.of(indices))) for array, indices in elements.items()]
    for target, indices in orders:
        shown = shown_id(target)
        try:
            if is_array_id(target):
                (client.kill_array if how == "kill" else client.cancel_array)(target, "scancel", elements=indices)
            else:
                (client.kill if how == "kill" else client.cancel)(target, "scancel")
        except IllegalTransition:
            # As scancel: a job that has ended is no failure.
            if not quiet:
                session.say(
                    f"scancel: error: Kill job error on job id {shown}: Job/step already completing or completed"
                )
        except (Forbidden, InvalidRequest) as error:
            failed = 1  # the others are still ended
            session.say(f"scancel: error: Kill job error on job id {shown}: {printable(error.message)}")
        except NotFound:
            failed = 1
            session.say(f"scancel: error: Kill job error on job id {shown}: Invalid job id specified")
    return failed
