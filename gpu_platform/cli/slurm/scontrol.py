"""``scontrol``: shows jobs, hosts and partitions; holds, releases, changes and requeues jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpu_platform.cli import session
from gpu_platform.cli.slurm import entry, host_rows, job_lists, job_rows
from gpu_platform.domain.array_ids import array_of, index_of, is_array_id
from gpu_platform.domain.errors import Forbidden, IllegalTransition, InvalidRequest, NotFound
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.texts import one_line, printable
from gpu_platform.slurm.dependencies import read_dependencies
from gpu_platform.slurm.getopt import WrongOption, table
from gpu_platform.slurm.hostlists import compress, expand
from gpu_platform.slurm.ids import number_of, shown_id
from gpu_platform.slurm.times import read_limit_s, written_long, written_moment
from gpu_platform.steps.environ import STDERR, STDIN, STDOUT

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.changes import JobChanges

OPTIONS = table(
    "oneliner|o all|a details|d quiet|Q verbose|v version|V help|h clusters|M= future|F hide json? "
    "yaml? sibling local federation uid|u="
)
VERBS = (
    "show",
    "hold",
    "uhold",
    "release",
    "update",
    "requeue",
    "ping",
    "version",
    "wait_job",
    "hostnames",
    "hostlist",
)


def run(words: list[str]) -> int:
    """Carry out a verb. Returns the exit code."""
    given, rest = OPTIONS.read(words, anywhere=True)
    asked = {one.name for one in given}
    if "version" in asked or rest[:1] == ["version"]:
        session.write(entry.VERSION)
        return 0
    if "help" in asked or not rest:
        session.write(f"Usage: scontrol [-o] VERB …; verbs: {', '.join(VERBS[:7])}")
        return 0 if "help" in asked else 1
    for name in ("json", "yaml"):
        if name in asked:
            raise WrongOption(f"--{name}: gpu-platform jobs list --output {name} prints it")
    verb, arguments = rest[0].lower(), rest[1:]
    match verb:
        case "show":
            return _show(arguments, oneliner="oneliner" in asked)
        case "hold" | "uhold" | "release" | "requeue":
            return _each(verb, arguments)
        case "update":
            return _update(arguments)
        case "requeuehold":
            raise WrongOption("requeuehold is not there: write scontrol requeue JOB, then scontrol hold JOB")
        case "ping":
            return _ping()
        case "wait_job":
            return _wait(arguments)
    raise WrongOption(f"invalid keyword: {rest[0]}; there are {', '.join(VERBS[:7])}")


def _show(arguments: list[str], *, oneliner: bool) -> int:
    if not arguments:
        raise WrongOption("too few arguments for keyword:show")
    what, rest = arguments[0].lower(), arguments[1:]
    if what in ("hostnames", "hostname", "hostlist", "hostlistsorted"):
        names = expand(rest[0]) if rest else []
        session.write_lines([compress(names)] if "list" in what else names)
        return 0
    named = [part.partition("=")[2] if "=" in part else part for part in rest]
    if "=" in what:  # scontrol show job=ID
        what, _, name = what.partition("=")
        named = [name, *named]
    with session.service() as client:
        match what.rstrip("s"):
            case "job" | "jobid":
                records, missing = _job_records(client, named)
            case "node":
                records, missing = _node_records(client, named)
            case "partition":
                records, missing = _partition_records(client, named)
            case "config" | "version":
                session.write(f"SLURM_VERSION = {entry.VERSION}")
                return 0
            case _:
                raise WrongOption(
                    f"invalid entity: {arguments[0]} for keyword:show; there are job, node, partition, hostnames"
                )
    for record in records:
        lines = [one_line(line) for line in record]  # a field of a job must not look like other fields
        session.write(" ".join(lines) if oneliner else "\n   ".join(lines) + "\n")
    for name in missing:
        session.say(
            {"job": "slurm_load_jobs error: Invalid job id specified"}.get(what[:3], f"{arguments[0]} {name} not found")
        )
    return 1 if missing else 0


def _job_records(client: Client, named: list[str]) -> tuple[list[list[str]], list[str]]:
    if named:
        found, missing = job_lists.jobs_of(client, [one for text in named for one in job_lists.ids(text)])
    else:
        found, missing = list(job_lists.jobs_in(client, [str(one) for one in job_lists.LIVE], None, None)), []
        found += [one for one in job_lists.parts_of_arrays(client, None, None) if one["state"] not in job_rows.ENDED]
    return [_job_record(job) for job in job_lists.order(found)], missing


def _job_record(job: job_lists.Job) -> list[str]:
    spec = job["spec"]
    array = array_of(job["id"])
    of_array = f" ArrayJobId={job_rows.array_job_id(job)} ArrayTaskId={job_rows.array_index(job)}" if array else ""
    if job_rows.is_array(job):
        of_array = f" ArrayJobId={number_of(job['id'])} ArrayTaskId={job.get('waiting_indices')}"
    return [
        f"JobId={job_rows.raw_id(job)}{of_array} JobName={spec['name']}",
        f"UserId={spec['user']}(N/A) GroupId=N/A MCS_label={spec['namespace']}",
        f"Priority={job_rows.priority(job)} Nice=0 Account={spec['namespace']} QOS=normal",
        f"JobState={job_rows.state(job)} Reason={job_rows.reason(job)} Dependency={job_rows.dependency(job)}",
        f"Requeue={int(spec.get('max_hardware_retries', 16) > 0)} "
        f"Restarts={max(0, (job.get('attempt') or 1) - 1)} "
        f"BatchFlag=1 Reboot=0 ExitCode={job_rows.exit_code(job)}",
        f"RunTime={written_long(job_rows.elapsed_s(job))} "
        f"TimeLimit={written_long(spec.get('time_limit_s'))} TimeMin=N/A",
        f"SubmitTime={written_moment(job.get('created_at'))} EligibleTime={written_moment(job.get('queued_at'))}",
        f"StartTime={_known(job_rows.start_time(job))} "
        f"EndTime={_known(job_rows.end_time(job))} "
        f"Deadline={written_moment(spec['deadline_at']) if spec.get('deadline_at') else 'N/A'}",
        f"Partition={job_rows.partition(job)} AllocNode:Sid=N/A",
        f"ReqNodeList={_patterns(spec, 'hosts_include')} ExcNodeList={_patterns(spec, 'hosts_exclude')}",
        f"NodeList={job_rows.nodelist(job) or '(null)'}",
        f"BatchHost={next(iter(job_rows.hosts(job)), '(null)')}",
        f"NumNodes={job_rows.nodes(job)} NumCPUs={job_rows.cpus(job)} NumTasks={job_rows.nodes(job)} CPUs/Task=N/A",
        f"TRES={job_rows.tres(job)}",
        f"MinMemoryNode={job_rows.memory(job)} Features=(null)",
        f"Command={job_rows.command(job)}",
        f"WorkDir={spec.get('workdir') or '(null)'}",
        *(
            f"{head}={job_rows.of_own_script(job, name) or '(null)'}"
            for head, name in (("StdErr", STDERR), ("StdIn", STDIN), ("StdOut", STDOUT))
        ),
        f"Comment={job['id']}",
        f"TresPerNode={job_rows.gpus_per_node(job)}",
    ]


def _known(moment: str) -> str:
    return "Unknown" if moment == "N/A" else moment


def _patterns(spec: dict[str, Any], name: str) -> str:
    return ",".join(spec["gpus"].get(name) or ()) or "(null)"


def _node_records(client: Client, named: list[str]) -> tuple[list[list[str]], list[str]]:
    wanted = [name for text in named for name in expand(text)]
    found = {node.name: node for node in host_rows.nodes(client)}
    missing = [name for name in wanted if name not in found]
    shown = [found[name] for name in wanted if name in found] if wanted else list(found.values())
    return [
        [
            f"NodeName={node.name} Arch=N/A",
            f"AvailableFeatures={node.features}",
            f"ActiveFeatures={node.features}",
            f"Gres={node.gres}",
            f"GresUsed={node.gres_used}",
            f"NodeAddr={node.host['address']} NodeHostName={node.name}",
            f"State={node.state.upper()} Weight=1 Owner=N/A MCS_label=N/A",
            f"Partitions={node.partition}",
            f"Reason={node.reason}",
        ]
        for node in shown
    ], missing


def _partition_records(client: Client, named: list[str]) -> tuple[list[list[str]], list[str]]:
    groups: dict[str, list[host_rows.Node]] = {}
    for node in host_rows.nodes(client):
        groups.setdefault(node.partition, []).append(node)
    missing = [name for name in named if name not in groups]
    return [
        [
            f"PartitionName={name}",
            "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
            "DefaultTime=NONE MaxTime=UNLIMITED MinNodes=0 MaxNodes=UNLIMITED",
            f"Nodes={compress(node.name for node in nodes)}",
            f"State=UP TotalNodes={len(nodes)}",
            f"TRES=node={len(nodes)},gres/gpu={sum(node.host['gpus_total'] for node in nodes)}",
        ]
        for name, nodes in groups.items()
        if not named or name in named
    ], missing


def _each(verb: str, arguments: list[str]) -> int:
    if not arguments:
        raise WrongOption(f"too few arguments for keyword:{verb}")
    texts = [part.partition("=")[2] if "=" in part else part for part in arguments]
    wanted = [one for text in texts for one in job_lists.ids(text)]
    failed = 0
    with session.service() as client:
        for one in wanted:
            try:
                _carry_out(client, verb, one)
            except (Forbidden, IllegalTransition, InvalidRequest, NotFound) as error:
                failed = 1  # as Slurm's: the others are still asked
                session.say(f"scontrol: error: {printable(error.message)}")
    return failed


def _carry_out(client: Client, verb: str, one: str) -> None:
    if verb == "release":
        client.release_array(one) if is_array_id(one) else client.release(one)
    elif verb == "requeue":
        _requeue(client, one)
    else:
        client.hold_array(one, "scontrol hold") if is_array_id(one) else client.hold(one, "scontrol hold")


def _requeue(client: Client, one: str) -> None:
    """Stop a job and queue it again. One that has ended runs again, under another id than Slurm's: a new one."""
    if is_array_id(one):
        raise InvalidRequest(f"{number_of(one)} is an array: requeue its elements, {number_of(one)}_INDEX")
    try:
        client.preempt(one, "scontrol requeue")
    except IllegalTransition:
        [job], _ = job_lists.jobs_of(client, [one])
        if job["state"] not in job_rows.ENDED:
            raise
        array = array_of(one)
        made = client.retry(one) if array is None else client.retry_array(array, elements=str(index_of(one)))
        session.say(
            f"scontrol: {shown_id(one)} had ended, so it runs again as {number_of(made.id)}: an id names one job for "
            f"ever here. What waits for {shown_id(one)} or reads it does not see the new one"
        )


def _update(arguments: list[str]) -> int:
    from gpu_platform.domain.jobs.changes import JobChanges

    asked: dict[str, str] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        if not equals:
            raise WrongOption(f"Invalid input: {word}; write NAME=VALUE")
        asked[name.lower().replace("_", "")] = value
    if "nodename" in asked or "partitionname" in asked:
        return _update_node(asked)
    identity = asked.pop("jobid", None) or asked.pop("job", None)
    if identity is None:
        raise WrongOption("JobId=… says which job")
    changes: dict[str, Any] = {}
    for name, value in asked.items():
        match name:
            case "timelimit":
                changes["time_limit_s"] = _limit(value)
            case "priority":
                changes["priority"] = _integer(value)
            case "dependency":
                found = read_dependencies(value) if value else {}
                if "singleton" in found:
                    raise WrongOption("Dependency=singleton: write afterany, and the ids")
                changes["after"] = [{"job_id": job, "kind": kind} for kind, ids in found.items() for job in ids]
            case _:
                raise WrongOption(f"{name} cannot be changed here: TimeLimit, Priority and Dependency can")
    if not changes:
        raise WrongOption("say what to change: TimeLimit, Priority or Dependency")
    _change(job_lists.ids(identity), session.validated(JobChanges, changes, "the change"))
    return 0


def _change(ids: list[str], changes: JobChanges) -> None:
    """Change jobs and arrays. Of what was not changed, people are told."""
    with session.service() as client:
        for one, indices in _together(ids):
            if indices is None and not is_array_id(one):
                client.update(one, changes)
                continue
            changed = client.update_array(one, changes, elements=indices)
            if changed.unchanged:
                session.say(f"{shown_id(one)}: {changed.summary}")


def _together(ids: list[str]) -> list[tuple[str, str | None]]:
    """Jobs and arrays, and several elements of an array as the array and their indices."""
    found: dict[str, list[str]] = {}
    for one in ids:
        found.setdefault(array_of(one) or one, []).append(one)
    return [
        (name, str(IndexSet.of(index_of(one) for one in named)))
        if len(named) > 1 and is_array_id(name) and name not in named
        else (named[0], None)
        for name, named in found.items()
    ]


def _limit(text: str) -> int | None:
    if text[:1] in ("+", "-"):
        raise WrongOption(f"TimeLimit={text}: write the whole limit, not a difference")
    return read_limit_s(text)


def _integer(text: str) -> int:
    if not re.fullmatch("-?[0-9]{1,9}", text):
        raise WrongOption(f"Priority={text}: write a number from -1000 to 1000")
    return int(text)


def _update_node(asked: dict[str, str]) -> int:
    state = asked.get("state", "").lower()
    if "partitionname" in asked or state not in ("drain", "resume", "down", "idle"):
        raise WrongOption(
            "of a host, State=DRAIN (with Reason=…) and State=RESUME can be set; others by gpu-platform hosts"
        )
    with session.service() as client:
        for name in expand(asked["nodename"]):
            if state in ("drain", "down"):
                client.drain(name, force=state == "down", reason=asked.get("reason", ""))
            else:
                client.online(name, asked.get("reason", ""))
    return 0


def _ping() -> int:
    with session.service() as client:
        client.ready()
        session.write(f"Slurmctld(primary) at {client.base_url} is UP")
    return 0


def _wait(arguments: Iterable[str]) -> int:
    from gpu_platform.cli.slurm.sbatch import wait_for

    return max((wait_for(one) for text in arguments for one in job_lists.ids(text)), default=1)
