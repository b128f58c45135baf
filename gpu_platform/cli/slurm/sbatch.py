"""``sbatch``: submits a script, and prints its id."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_platform.cli import session
from gpu_platform.cli.slurm import entry
from gpu_platform.client import calls
from gpu_platform.slurm.getopt import Given, WrongOption
from gpu_platform.slurm.ids import number_of
from gpu_platform.slurm.sbatch_options import ENVIRON, MAPPED, OF_SBATCH, TABLE, name_of
from gpu_platform.slurm.script import MAX_BYTES, Script, parse, read_script

if TYPE_CHECKING:
    from gpu_platform.cli.submitting.script_submission import ScriptJob


def run(words: list[str]) -> int:
    """Submit what the words say. Returns the exit code: with ``--wait`` that of the job."""
    given, rest = TABLE.read(words)
    asked = {one.name: one.value for one in given}
    if "version" in asked:
        session.write(entry.VERSION)
        return 0
    if "help" in asked or "usage" in asked:
        session.write("Usage: sbatch [OPTIONS] SCRIPT [ARGUMENTS]\n\nOptions that have an effect here:")
        for key, becomes in {**MAPPED, **OF_SBATCH}.items():
            session.write(f"  --{name_of(key):22} {becomes}")
        return 0
    script, arguments = _script(asked, rest)
    ours = frozenset(name_of(key) for key in OF_SBATCH)
    options = [*of_environ(os.environ), *(one for one in given if one.name not in ours)]
    return submit(prepared(script, arguments, options), asked)


def submit(job: ScriptJob, asked: Mapping[str, str]) -> int:
    """Submit the job or array. ``asked``: parsable, quiet, test-only and wait."""
    if "test-only" in asked:
        return _test(job.fields)
    from gpu_platform.cli.submitting.submit import with_code

    fields, arrays = with_code(job.environment, job.fields, None), job.arrays
    with session.service() as client:
        if arrays.given:
            from gpu_platform.domain.jobs.spec import JobSpec

            identity = client.submit_array(session.validated(JobSpec, fields, "the job"), arrays.spec([])).id
        else:
            submitted = client.json(calls.submit(fields, None))
            identity = submitted["id"]
            for warning in submitted.get("warnings", ()):
                session.say(f"sbatch: warning: {warning}")
    number = number_of(identity)
    if "parsable" in asked or "quiet" in asked:
        session.write(number)
    else:
        session.write(f"Submitted batch job {number}")
        session.say(f"sbatch: gpu-platform calls it {identity}")
    return wait_for(identity) if "wait" in asked else 0


def wait_for(identity: str) -> int:
    """Wait for the end of a job or array. Returns its exit code; of an array the largest of its elements."""
    from gpu_platform.domain.array_ids import is_array_id

    with session.service(session.FOLLOW_PATIENCE_S) as client:
        if not is_array_id(identity):
            return session.exit_code_of_job(client.wait(identity))
        client.wait_for_array(identity)
        elements = client.json_pages(lambda cursor: calls.elements(identity, None, cursor, 1000))
        return max((0 if one["state"] == "COMPLETED" else one.get("exit_code") or 1 for one in elements), default=1)


def _script(asked: Mapping[str, str], rest: list[str]) -> tuple[Script, list[str]]:
    if "wrap" in asked:
        if rest:
            raise WrongOption(f"Script arguments not permitted with --wrap option: {rest[0]}")
        return parse(
            f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{asked['wrap']}\n".encode(), "wrap"
        ), []
    if not rest:
        return parse(sys.stdin.buffer.read(MAX_BYTES + 1), "sbatch"), []
    if not Path(rest[0]).exists():
        raise WrongOption(f"Unable to open file {rest[0]}")
    return read_script(Path(rest[0])), rest[1:]


def of_environ(environ: Mapping[str, str]) -> list[Given]:
    """The options for which variables stand, as ``SBATCH_TIMELIMIT``."""
    return [
        Given(option, "" if option in ("requeue", "no-requeue", "spread-job") else environ[name], name)
        for name, option in ENVIRON.items()
        if environ.get(name)
    ]


def prepared(script: Script, arguments: list[str], given: list[Given]) -> ScriptJob:
    """What the script and its options ask for, with the defaults. Raises ``ValueError`` and errors of typer."""
    from gpu_platform.cli.commands import LazyCommands
    from gpu_platform.cli.submitting import script_submission
    from gpu_platform.cli.submitting.submit import job_fields, with_level

    job = script_submission.prepared(LazyCommands()["submit"], script, arguments, {}, given)
    return job._replace(fields=job_fields(with_level(job.fields), {}))


def _test(fields: dict[str, Any]) -> int:
    """Say where and when it would start, as ``sbatch --test-only``: on stderr."""
    from gpu_platform.domain.jobs.spec import JobSpec

    with session.service() as client:
        answer = client.dry_run(session.validated(JobSpec, fields, "the job"))
    if not answer.accepted:
        raise ValueError(f"allocation failure: {answer.message}")
    session.say(f"sbatch: {answer.message}")
    return 0
