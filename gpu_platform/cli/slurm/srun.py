"""``srun`` outside of a script: submits a job, prints what it writes, and ends with its exit code.

Inside a script it starts a step: :mod:`gpu_platform.steps.srun`.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from gpu_platform.cli import session
from gpu_platform.cli.slurm import entry, sbatch
from gpu_platform.slurm.getopt import OptionTable, WrongOption, table
from gpu_platform.slurm.ids import number_of
from gpu_platform.slurm.sbatch_options import TABLE
from gpu_platform.slurm.script import parse

_OWN = table(
    "label|l kill-on-bad-exit|K? pty? mpi= cpu-bind= unbuffered|u immediate|I? exact overlap relative|r= jobid= "
    "multi-prog disable-status|X epilog= prolog= task-epilog= task-prolog= preserve-env|E interactive het-group= "
    "threads= accel-bind= mem-bind="
)
OPTIONS = OptionTable({**TABLE.by_name, **_OWN.by_name}.values())
_STEP = ("label", "kill-on-bad-exit", "mpi", "cpu-bind", "output", "error")
"""Options of the step, not of the job."""
_OF_THE_JOB = frozenset(TABLE.by_name) - {
    *_STEP,
    "wait",
    "parsable",
    "test-only",
    "wrap",
    "array",
    "verbose",
    "quiet",
    "version",
    "help",
}


def run(words: list[str]) -> int:
    """Run a command in a job of its own. Returns its exit code."""
    given, command = OPTIONS.read(words)
    asked = {one.name: one.value for one in given}
    if "version" in asked:
        session.write(entry.VERSION)
        return 0
    if "help" in asked or not command:
        session.write(
            "Usage: srun [OPTIONS] PROGRAM [ARGUMENTS]\nThe options of sbatch, and --label and --kill-on-bad-exit."
        )
        return 0 if "help" in asked else 1
    if "pty" in asked:
        raise WrongOption(
            "--pty: outside of a script write gpu-platform run -t, e.g. gpu-platform run --gpus 1 -t -- bash"
        )
    for name in ("multi-prog", "jobid", "het-group", "array"):
        if name in asked:
            raise WrongOption(f"--{name}: no counterpart outside of a script")
    step = [f"--{one.name}={one.value}" if one.value else f"--{one.name}" for one in given if one.name in _STEP]
    text = f"#!/bin/sh\nexec srun {shlex.join(step)} -- {shlex.join(command)}\n"
    options = [one for one in given if one.name in _OF_THE_JOB]
    job = sbatch.prepared(parse(text.encode(), Path(command[0]).name or "srun"), [], options)
    return _follow(job.fields)


def _follow(fields: dict[str, object]) -> int:
    from gpu_platform.cli.jobs import following
    from gpu_platform.client import calls

    with session.service(session.FOLLOW_PATIENCE_S) as client:
        identity = client.json(calls.submit(fields, None))["id"]
        session.say(f"srun: job {number_of(identity)} ({identity}) queued and waiting for resources")
        try:
            job = following.follow_job(client, identity, json=False)
        except KeyboardInterrupt:
            client.cancel(identity, "srun was interrupted")
            raise
    return session.exit_code_of_job(job)
