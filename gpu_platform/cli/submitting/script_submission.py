"""``gpu-platform submit job.sh``, and what ``sbatch`` and ``srun`` share with it: from a script to a submission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import typer

from gpu_platform.cli import session
from gpu_platform.cli.option_groups import given
from gpu_platform.cli.submitting import scripts
from gpu_platform.cli.submitting.array_options import ArrayOptions
from gpu_platform.cli.submitting.environment_options import EnvironmentOptions
from gpu_platform.cli.submitting.gpu_options import GpuOptions
from gpu_platform.cli.submitting.submit_options import (
    DependencyOptions,
    FaultOptions,
    LimitOptions,
    ProgramOptions,
    SecretOptions,
    SubmitOptions,
)
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.slurm.getopt import Given
from gpu_platform.slurm.script import Script, WrongScript, read_script

_GROUPS = (GpuOptions, ProgramOptions, SecretOptions, DependencyOptions, LimitOptions, FaultOptions)


class ScriptJob(NamedTuple):
    """What a script asks for."""

    fields: dict[str, Any]
    """Of the job, without the hash of its code."""
    arrays: ArrayOptions
    environment: EnvironmentOptions
    """Says which code is sent."""


def submit(context: typer.Context, command: list[str], words: list[str], options: SubmitOptions) -> None:
    """Submit a script, with what was typed over its directives. ``words``: more of ``--matrix``."""
    from gpu_platform.cli.submitting.submit import submit_fields

    try:
        script = read_script(Path(command[0]))
        job = prepared(context.command, script, command[1:], scripts.given_params(context))
    except WrongScript as error:
        raise InvalidRequest(str(error)) from None
    submit_fields(job.fields, job.arrays, words, options, job.environment)


def prepared(
    command: Any, script: Script, arguments: list[str], typed: Mapping[str, Any], more: Iterable[Given] | None = None
) -> ScriptJob:
    """What the script and its options ask for. Notes are printed. Raises :class:`WrongScript` and
    :class:`typer.BadParameter`. See :func:`scripts.job_of`."""
    job = scripts.job_of(command, script, arguments, typed, more)
    for note in job.notes:
        session.say(f"note: {note}")
    found: dict[str, Any] = {}
    for group in _GROUPS:
        found |= _group(group, job.params).fields()
    if job.job_token:
        found["job_token"] = True
    found["env"] = {**job.env, **found.get("env", {})}
    environment: EnvironmentOptions = _group(EnvironmentOptions, job.params)
    found |= environment.fields() | environment.workdir(found.get("workdir"))
    return ScriptJob({**found, **given(command=job.command)}, _group(ArrayOptions, job.params), environment)


def _group(group: Any, params: Mapping[str, Any]) -> Any:
    return group(**{one.name: params[one.name] for one in fields(group) if one.name in params})
