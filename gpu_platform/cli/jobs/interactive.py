"""Jobs that hold GPUs for one session: ``gpu-platform run`` makes them, ``jobs attach`` comes back to them.

The rank of such a job is a small placeholder (:mod:`gpu_platform.cli.placeholder`), and the command itself a session
beside it, which goes on while nobody is attached.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_platform.cli import session
from gpu_platform.cli.placeholder import command_of, session_command

if TYPE_CHECKING:
    from gpu_platform.cli.jobs.streaming import Place, StreamEnd
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.exec import ExecInfo
    from gpu_platform.domain.jobs.job import Job

_LOOK_S, _LONGEST_LOOK_S = 0.2, 2.0
_END_PATIENCE_S = 20.0


def begin(client: Client, job_id: str, command: Sequence[str], idle_s: int, *, terminal: bool) -> Place:
    """Start the session of a job that runs."""
    from gpu_platform.cli.jobs.streaming import Place, with_terminal
    from gpu_platform.domain.jobs.exec import ExecRequest

    request = ExecRequest(command=session_command(command), tty=terminal, unread_s=idle_s)
    return Place(client.exec(job_id, with_terminal(request) if terminal else request))


def wait_until_running(client: Client, job_id: str, within_s: float | None = None) -> Job | None:
    """Wait for the job's start, and say why it waits. Returns it when it runs or has ended; None: not ``within_s``."""
    from gpu_platform.cli.terminal import safe
    from gpu_platform.domain.states import JobState

    deadline = None if within_s is None else time.monotonic() + within_s
    said, pause_s = "", _LOOK_S
    with session.err().status(safe(f"{job_id} …")) as spinner:
        while True:
            job = client.get(job_id)
            if job.state is JobState.RUNNING or job.state.is_terminal:
                return job
            why = job.reason.message if job.reason is not None else job.state.value.lower()
            if why != said:
                said = why
                if sys.stderr.isatty():
                    spinner.update(safe(f"{job_id} waits: {why}"))
                else:
                    session.say(f"{job_id} waits: {why}")
            left = pause_s if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause_s, left))
            pause_s = min(1.2 * pause_s, _LONGEST_LOOK_S)


def stay(client: Client, job_id: str, place: Place, idle_s: int, *, terminal: bool) -> int:
    """Stay attached to the session of a job that ``run`` made, until one of them ends. Returns the exit code."""
    from gpu_platform.cli.jobs.streaming import stream_both_ways
    from gpu_platform.domain.errors import NotFound, PlatformError

    try:
        ended = stream_both_ways(client, place, terminal=terminal, may_leave=True)
    except KeyboardInterrupt:
        cancel(client, job_id, "its session has ended")
        raise
    except NotFound:
        return _code_of_job(client, job_id, None)  # it ended while the connection was lost
    except PlatformError as error:
        session.say(f"{error.message}\n{_goes_on(job_id, idle_s)}")
        return session.exit_code_of(error)
    return _after(client, job_id, ended, idle_s)


def attach(job_id: str, rank: int, session_id: str | None, break_glass: str | None) -> int:
    """What ``jobs attach`` does. Returns its exit code."""
    from gpu_platform.domain.errors import NotFound

    with session.service(session.FOLLOW_PATIENCE_S, break_glass) as client:
        job = wait_until_running(client, job_id)
        assert job is not None
        if job.state.is_terminal:
            from gpu_platform.cli.jobs.following import print_end

            print_end(job, read=True)
            return session.exit_code_of_job(job)
        found = command_of(job.spec.command)
        info = _newest(client, job_id, rank, session_id)
        if info is None and (found is None or session_id is not None):
            named = f"session {session_id}" if session_id else "session"
            raise NotFound(
                f"you have no {named} beside rank {rank} of {job_id}; start one: "
                f"gpu-platform jobs exec {job_id} -t -- bash"
            )
        if info is None:
            assert found is not None
            command, idle_s = found
            terminal = sys.stdin.isatty() and sys.stdout.isatty()
            place = begin(client, job_id, command, idle_s, terminal=terminal)
            return stay(client, job_id, place, idle_s, terminal=terminal)
        place = _attached(client, info)
        if found is not None:
            return stay(client, job_id, place, found[1], terminal=info.tty)
        return _stay_beside(client, place, terminal=info.tty)


def _attached(client: Client, info: ExecInfo) -> Place:
    from gpu_platform.cli.jobs.streaming import Place, need_terminal, resize, terminal_size

    if not info.tty:
        found = client.exec_attach(info.session, rows=10_000)  # a pipe wants all that is kept
    else:
        need_terminal()
        rows, columns = terminal_size()
        # Another size than it has, and then the right one: programs that draw the whole screen draw it anew.
        found = client.exec_attach(info.session, rows, max(1, columns - 1))
        resize(client, info.session)
    return Place(info.session, found.attachment, found.offset, found.received)


def _stay_beside(client: Client, place: Place, *, terminal: bool) -> int:
    from gpu_platform.cli.jobs.streaming import stream_both_ways

    ended = stream_both_ways(client, place, terminal=terminal, may_leave=True)
    if ended.reason is not None:
        session.say(f"the command was ended: {ended.reason}" if ended.how == "exit" else ended.reason)
    return 0 if ended.how == "left" else ended.exit_code


def _newest(client: Client, job_id: str, rank: int, session_id: str | None) -> ExecInfo | None:
    for info in reversed(client.exec_sessions(job_id, rank=rank)):
        if info.port is None and not info.ended and session_id in (None, info.session.id):
            return info
    return None


def _after(client: Client, job_id: str, ended: StreamEnd, idle_s: int) -> int:
    if ended.how == "taken":
        session.say(f"{ended.reason}; take it back: gpu-platform jobs attach {job_id}")
        return session.CONFLICT
    if ended.how == "left":
        session.say(_goes_on(job_id, idle_s))
        return 0
    if ended.reason is not None:
        session.say(f"the session was ended: {ended.reason}")
        return _code_of_job(client, job_id, None)
    return _code_of_job(client, job_id, ended.exit_code)


def _code_of_job(client: Client, job_id: str, code: int | None) -> int:
    """Wait until the job has released its GPUs. ``code``: the exit code of the command, if it is known."""
    from gpu_platform.cli.jobs.following import print_end

    try:
        job = client.wait(job_id, _END_PATIENCE_S)
    except TimeoutError:
        job = None
    if job is None or not job.state.is_terminal:
        # It was started again elsewhere, where no session waits for it.
        if cancel(client, job_id, "its session has ended"):
            session.say(f"{job_id} is cancelled: its session has ended")
        return session.FAILED if code is None else code
    if code is None or job.stopped_by is not None:
        print_end(job, read=True)
    return session.exit_code_of_job(job) if code is None else code


def cancel(client: Client, job_id: str, why: str) -> bool:
    """Cancel the job. False: it could not be, and this says so; it holds what it holds."""
    from gpu_platform.domain.errors import PlatformError

    try:
        client.cancel(job_id, why)
    except PlatformError as error:
        if error.http_status != 409:  # it has ended
            session.say(
                f"{job_id} could not be cancelled, and goes on: {error.message}\n"
                f"End it later: gpu-platform jobs cancel {job_id}"
            )
            return False
    return True


def _goes_on(job_id: str, idle_s: int) -> str:
    return (
        f"{job_id} goes on, and ends if nobody is attached for {idle_s} s; "
        f"come back: gpu-platform jobs attach {job_id}; end it: gpu-platform jobs cancel {job_id}"
    )
