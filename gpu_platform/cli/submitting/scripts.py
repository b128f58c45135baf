"""Scripts with directives: ``gpu-platform submit job.sh``. The script's text is what runs, on whatever host (ADR 69).

Options of the command line win over ``#GPU`` lines, and these over ``#SBATCH`` lines.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import typer
from typer.exceptions import TyperException

from gpu_platform.cli import parsing
from gpu_platform.slurm import sbatch_options
from gpu_platform.slurm.array_option import read_array
from gpu_platform.slurm.getopt import Given
from gpu_platform.slurm.script import OURS, Script, WrongScript, read_directives
from gpu_platform.slurm.translation import Submitter, Translation, translate
from gpu_platform.steps.environ import LAUNCH, OPTIONS, SCRIPT

MAX_BYTES = 120 * 1024
_OF_THE_COMMAND = ("file", "idempotency_key", "dry_run", "wait", "follow", "json", "command")
"""Parameters of ``submit`` that say how the command works, and nothing of the job."""
_SHAPES = {
    "gpus": ("gpus_per_host", "total"),
    "gpus_per_host": ("gpus", "total"),
    "hosts": ("total",),
    "total": ("gpus", "hosts", "gpus_per_host"),
    "cpus": ("cpus_per_gpu",),
    "cpus_per_gpu": ("cpus",),
    "ram": ("memory_per_gpu",),
    "memory_per_gpu": ("ram",),
    "signal": ("warn_signal", "warn_before", "warn_program_only"),
    "warn_signal": ("signal",),
    "warn_before": ("signal",),
}
"""Option -> those that answer the same question: one from a better place takes their place, too."""
_AFTER = ("after", "after_any", "after_fail")
_INSTEAD_OF_LAUNCHERS = {
    "mpi": "mpirun in the script, which reaches all hosts by srun",
    "torchrun": "srun torchrun in the script, with one task for each host (--ntasks-per-node=1)",
}
_ASKS_THE_PLATFORM = re.compile(
    r"(?<![\w.-])(?:sbatch|squeue|scancel|sacct|sinfo|scontrol(?!\s+show\s+host)|gpu-platform)(?![\w.-])"
)


@dataclass
class ScriptJob:
    """What the directives of a script, and what was typed, make of it."""

    params: dict[str, Any]
    """Parameters of ``submit`` that somebody gave: a directive, or the command line."""
    command: list[str]
    env: dict[str, str]
    notes: list[str] = field(default_factory=list)
    job_token: bool = False


def job_of(
    command: Any,
    script: Script,
    arguments: Sequence[str],
    typed: Mapping[str, Any],
    more: Iterable[Given] | None = None,
) -> ScriptJob:
    """Read the directives of a script.

    ``command``: of typer, ``submit``. ``typed``: its parameters that were given on the command line. ``more``: options
    of sbatch that win over the directives; None: it was not submitted by sbatch. Raises :class:`WrongScript`, with a
    line for each wrong directive.
    """
    is_slurm = bool(script.slurm) or more is not None
    translation = Translation(runner={"name": os.path.basename(script.name)})
    given = [*read_directives(script.slurm, sbatch_options.TABLE), *(more or ())]
    if is_slurm:
        translation = translate(given, _submitter(script))
    params = _params(command, translation.words, script.name) if translation.words else {}
    params = _over(params, _of_ours(command, script))
    params = _over(params, typed)
    if is_slurm and params.get("rank_per") == "gpu":
        raise WrongScript(f"{script.name}: a script with #SBATCH lines runs once; srun starts a task for each GPU")
    if is_slurm and (launcher := params.get("launcher")) in _INSTEAD_OF_LAUNCHERS:
        raise WrongScript(
            f"{script.name}: a script with #SBATCH lines runs once, on the first host, so --launcher {launcher} would "
            f"not reach the others: leave it out, and write {_INSTEAD_OF_LAUNCHERS[launcher]}"
        )
    notes = translation.notes + [
        f"{where}: not read, because it stands behind the first command" for where in script.late
    ]
    if is_slurm:
        notes += _by_cluster(translation, params)
    _say_to_runner(translation, params)
    if os.path.isfile(script.name):
        translation.runner["file"] = os.path.abspath(script.name)
    text = json.dumps(script.text).replace("{", "\\u007b")  # elements of arrays replace {index} in their environment
    if len(text) > MAX_BYTES:
        raise WrongScript(f"{script.name} is too large: put data into files, and read them in the script")
    env = translation.env | {
        SCRIPT: text,
        OPTIONS: json.dumps({k: v for k, v in translation.runner.items() if v is not None}),
    }
    words = [*LAUNCH, *arguments]
    asks = is_slurm and _ASKS_THE_PLATFORM.search(_without_comments(script.text)) is not None
    if asks:
        notes.append(
            f"{script.name} uses commands of the scheduler: its job gets a token, with which it submits jobs as you"
        )
    return ScriptJob(params, words, env, notes, job_token=asks)


def _say_to_runner(translation: Translation, params: dict[str, Any]) -> None:
    """Let the script see the name, limit and indices that count in the end, wherever they were written."""
    runner = translation.runner
    runner["name"] = params.setdefault("name", runner["name"])
    runner["time_limit_s"] = limit = params.get("time")
    if limit is not None and params.get("warn_before", 0) >= limit > 1:
        params["warn_before"] = limit - 1
    runner["passes_on"] = params.get("warn_signal", "USR1") if params.get("warn_program_only") else None
    if (text := params.get("signal")) is not None and (warning := parsing.warning(text)).batch_only:
        runner["passes_on"] = warning.signal
    try:
        runner["array"] = None if params.get("array") is None else read_array(params["array"])[1]
    except ValueError:  # a file with parameters, or a mistake that the service names
        runner["array"] = None


def given_params(context: Any) -> dict[str, Any]:
    """The parameters of a command that were typed."""
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


def _params(command: Any, words: Sequence[str], where: str) -> dict[str, Any]:
    """Parameters of ``submit`` for these words. Raises :class:`WrongScript`."""
    try:
        with command.make_context("submit", list(words)) as context:
            found = given_params(context)
    except typer.Exit:
        raise WrongScript(f"{where}: --help is no option of a job") from None
    except TyperException as error:
        raise WrongScript(f"{where}: {_said(error)}") from None
    return found


def _said(error: Any) -> str:
    text = error.format_message()
    name = getattr(error, "option_name", None)
    near = (
        get_close_matches(str(name), error.possibilities or [], 1, 0.1)
        if name and hasattr(error, "possibilities")
        else []
    )
    return f"there is no option {name}" + (f"; the nearest is {near[0]}" if near else "") if name else text


def _of_ours(command: Any, script: Script) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for directive in script.ours:
        where = f"{directive.where}: {OURS}"
        try:
            params = _params(command, directive.words, where)
        except WrongScript as error:
            wrong.append(str(error))
            continue
        for name in [name for name in params if name in _OF_THE_COMMAND]:
            wrong.append(f"{where} {name.replace('_', '-')}: it says nothing of the job; write it on the command line")
        for name, value in params.items():
            several = isinstance(value, list) and name in found
            found[name] = [*found[name], *value] if several else value
    if wrong:
        raise WrongScript("\n".join(wrong))
    return found


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of two places. Those ``above`` win, and replace others that answer the same question."""
    replaced = {other for name in above for other in _SHAPES.get(name, ())}
    found = {name: value for name, value in below.items() if name not in replaced} | dict(above)
    if "env" in below and "env" in above:
        found["env"] = [*below["env"], *above["env"]]
    return found


def _by_cluster(translation: Translation, params: dict[str, Any]) -> list[str]:
    """Partitions and QOS: the cluster says whether it has them."""
    notes: list[str] = []
    if translation.qos is not None and "priority" not in params:
        from gpu_platform.cli import session

        with session.service() as client:
            levels = client.who_am_i().priorities
        if translation.qos in levels:
            params["priority"] = translation.qos
        else:
            named = ", ".join(sorted(levels, key=lambda name: levels[name])) or "no levels"
            notes.append(f"--qos={translation.qos}: no effect here: priorities are {named}")
    if translation.partitions:
        from gpu_platform.cli.slurm.partitions import partitions

        there = partitions()
        if not there:
            notes.append(
                f"--partition={','.join(translation.partitions)}: no effect here: no host has the label partition"
            )
        elif unknown := [name for name in translation.partitions if name not in there]:
            raise WrongScript(f"there is no partition {unknown[0]}: hosts have {', '.join(sorted(there))}")
        else:
            constraint = f"partition={'|'.join(translation.partitions)}"
            params["constraint"] = [*(params.get("constraint") or []), constraint]
    if translation.is_singleton:
        notes += _wait_for_the_name(params)
    if translation.mail_on and "notify" not in params:
        notes += _mail(translation, params)
    return notes


def _wait_for_the_name(params: dict[str, Any]) -> list[str]:
    """``--dependency=singleton``: the job waits until those of its name that the user has now have ended."""
    from gpu_platform.cli import session
    from gpu_platform.cli.slurm import job_lists
    from gpu_platform.domain.errors import Forbidden

    notes: list[str] = []
    try:
        with session.service() as client:
            user, name = job_lists.user_of(client), params["name"]
            live = [str(state) for state in job_lists.LIVE]
            found = [job["id"] for job in job_lists.jobs_in(client, live, user, name)]
            found += job_lists.open_arrays(client, user, name)
    except Forbidden:
        # The token of a job lists no jobs. The usual reason to ask from inside is to go on after this one.
        found = [os.environ.get("GPU_PLATFORM_ARRAY_ID") or os.environ["GPU_PLATFORM_JOB_ID"]]
        notes.append("--dependency=singleton: it waits for this job only, because a job sees no other one")
    named = [one for option in _AFTER for text in params.get(option) or () for one in text.split(",")]
    if more := [one for one in found if one not in named]:
        params["after_any"] = [*(params.get("after_any") or ()), ",".join(more)]
    return notes


def _mail(translation: Translation, params: dict[str, Any]) -> list[str]:
    """Who is told: the cluster says whether it sends mail, and to whom."""
    from gpu_platform.cli import session

    with session.service() as client:
        found = [target for target in client.notification_targets() if target.personal]
    if (namespace := params.get("namespace")) is not None:
        found = [target for target in found if "*" in target.namespaces or namespace in target.namespaces]
    if not found:
        return ["--mail-type: no effect here: the cluster sends no mail to users (gpu-platform notifications list)"]
    events, rules, notes = ",".join(translation.mail_on), list[str](), list[str]()
    for address in translation.mail_to:
        domains = [domain for target in found for domain in target.domains]
        if address.rpartition("@")[2].lower() in domains or address in [target.address for target in found]:
            rules.append(f"{events}:{address}")
        else:
            named = ", ".join(domains) or "your own address only"
            notes.append(f"--mail-user={address}: no effect here: mail goes to {named}")
    if not translation.mail_to:
        rules.append(f"{events}:{found[0].name}")
    if rules:  # an empty list would take the cluster's defaults away
        params["notify"] = rules
    return notes


def _submitter(script: Script) -> Submitter:
    return Submitter(
        script_name=script.name,
        directory=os.getcwd(),
        environ=os.environ,
        now=datetime.now().astimezone(),
        host=socket.gethostname(),
        user=os.environ.get("GPU_PLATFORM_USER") or _account(),
    )


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
