"""What ``submit`` and ``jobs …`` do until a job has ended: wait for it, print its output, say how it ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpu_platform.cli import session

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.job import Job


def wait_for(client: Client, job_id: str, *, print_id: bool = False) -> Job:
    """Wait with a spinner on stderr. Ctrl-C leaves the job running. ``print_id``: print the id, and what Ctrl-C
    does, first."""
    from gpu_platform.cli.terminal import safe

    try:
        if print_id:
            session.write(job_id)
        with session.err().status(safe(f"{job_id} …")) as spinner:
            for event in client.events(job_id, follow=True):
                if event.kind.startswith("job."):
                    spinner.update(safe(f"{job_id}: {event.kind.removeprefix('job.')}"))
            return client.wait(job_id)
    except KeyboardInterrupt:
        session.say(f"{job_id} goes on; stop it with: gpu-platform jobs cancel {job_id}")
        raise


def follow_job(
    client: Client, job_id: str, json: bool, rank: int = 0, attempt: int | None = None, *, raw: bool = False
) -> Job:
    """Print what one rank writes until the job has ended. ``raw``: it may control the terminal."""
    from gpu_platform.cli.terminal import ProgramOutput

    output = ProgramOutput(sys.stdout, raw=raw)
    try:
        for chunk in client.follow_logs(job_id, rank=rank, attempt=attempt):
            if json:
                session.print_json(chunk)
                continue
            if chunk.note is not None:
                session.say(f"[gpu-platform: {chunk.note}]")
            output.write(chunk.text)
        return client.wait(job_id) if attempt is None else client.get(job_id)
    except KeyboardInterrupt:
        session.say(f"{job_id} goes on; stop it with: gpu-platform jobs cancel {job_id}")
        raise
    finally:
        output.close()


def print_end(job: Job, *, read: bool = False) -> None:
    """Print to stderr how the job ended, and where its output is. ``read``: the user has seen its output."""
    # A job that was cancelled or completed may still carry the failure of an earlier attempt.
    why = f": {job.failure.message}" if job.failure and job.state == "FAILED" else ""
    if job.stopped_by is not None and job.state == "CANCELLED":
        why = f": {job.stopped_by}"
    session.say(f"{job.id} {job.state}{why}")
    if job.state == "FAILED" and job.placement is not None and not read:
        session.say(f"see what it wrote: gpu-platform jobs logs {job.id}")
