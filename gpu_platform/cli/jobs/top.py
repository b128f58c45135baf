"""``gpu-platform jobs top``: what the GPUs and ranks of a running job do, again and again."""

from __future__ import annotations

import json as json_module
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.session import JobId

if TYPE_CHECKING:
    from gpu_platform.cli.show.show_top import History
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.job import Job
    from gpu_platform.domain.jobs.usage import RunningUsage

SHORTEST_S = 0.5
_HISTORY_S = 300
"""The window of the line below the table, in seconds."""
_HISTORY_EVERY_S = 30.0


def register(jobs: typer.Typer) -> None:
    """Add the command ``jobs top``."""
    jobs.command("top")(top)


def top(
    job: JobId,
    interval: Annotated[
        float | None,
        typer.Option(parser=parsing.duration_s, metavar="TIME", help="1s, 500ms; at least 500ms; default: 2s."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    output: Annotated[
        Literal["table", "json"], typer.Option("-o", "--output", help="json: one line of JSON each time.")
    ] = "table",
    json: session.Json = False,
) -> None:
    """Show utilisation, memory, temperature and power of a job's GPUs, and CPU and memory of its ranks.

    q or Ctrl-C ends it; so does the end of the job.
    """
    pause_s = 2.0 if interval is None else interval
    if pause_s < SHORTEST_S:
        raise typer.BadParameter(f"--interval {pause_s:g}s is too short: at least {SHORTEST_S:g}s")
    with session.service() as client:
        looks = _looks(client, job)
        if json or output == "json":
            _print_lines(looks, None if once else pause_s)
        elif once or not sys.stdout.isatty():
            _print_tables(looks, None if once else pause_s)
        else:
            _show_live(looks, pause_s)
        found = client.get(job)
    if found.state.is_terminal and not once:
        from gpu_platform.cli.jobs.following import print_end

        print_end(found)


class _Look:
    """What one look at the job found."""

    def __init__(self, job: Job, running: RunningUsage | None, cpus: dict[int, float], history: History | None) -> None:
        self.job, self.running, self.cpus, self.history = job, running, cpus, history

    def as_json(self) -> dict[str, Any]:
        """One JSON object; null: not known."""
        from gpu_platform.domain.jobs.ranks import number_ranks

        running, slices = self.running, self.job.placement.slices if self.job.placement else []
        ranks_of = {}
        for rank in number_ranks(self.job.spec, slices):
            for uuid in rank.gpu_uuids if rank.local_size == 1 else [rank.gpu_uuids[rank.local_rank]]:
                ranks_of[uuid] = rank.rank
        gpus = [] if running is None else running.gpus
        ranks = [] if running is None else running.ranks
        return {
            "job_id": self.job.id,
            "state": self.job.state.value,
            "attempt": self.job.attempt,
            "gpus": [{"rank": ranks_of.get(gpu.uuid), **gpu.model_dump(mode="json")} for gpu in gpus],
            "ranks": [{**rank.model_dump(mode="json"), "cpus_now": self.cpus.get(rank.rank)} for rank in ranks],
            "unmeasured_hosts": [] if running is None else running.unmeasured_hosts,
        }


def _looks(client: Client, job_id: str) -> Iterator[_Look]:
    """Look each time that the caller asks for the next one. It ends with the job, after one look."""
    from gpu_platform.domain.errors import PlatformError

    before: dict[int, tuple[float, float]] = {}
    history, asked_at = None, float("-inf")
    while True:
        job, usage, now = client.get(job_id), client.job_usage(job_id), time.monotonic()
        ranks = [] if usage.running is None else usage.running.ranks
        cpus = {}
        for rank in ranks:
            seconds, cpu_s = before.get(rank.rank, (rank.seconds, rank.cpu_s))
            if rank.seconds > seconds:  # the hosts' own clocks: the way here takes its time
                cpus[rank.rank] = round(max(0.0, rank.cpu_s - cpu_s) / (rank.seconds - seconds), 2)
        before = {rank.rank: (rank.seconds, rank.cpu_s) for rank in ranks}
        if usage.running is not None and now - asked_at > _HISTORY_EVERY_S:
            asked_at = now
            try:
                history = client.metrics.of_job(job_id, window_s=_HISTORY_S)
            except PlatformError:
                history = None  # its hosts keep no samples, or do not answer
        yield _Look(job, usage.running, cpus, history)
        if job.state.is_terminal:
            return


def _print_lines(looks: Iterator[_Look], pause_s: float | None) -> None:
    for look in looks:
        session.write(json_module.dumps(look.as_json()))
        if pause_s is None:
            return
        time.sleep(pause_s)


def _print_tables(looks: Iterator[_Look], pause_s: float | None) -> None:
    from gpu_platform.cli.show import show_top

    for look in looks:
        session.show(show_top.table(look.job, look.as_json(), look.history))
        if pause_s is None:
            return
        time.sleep(pause_s)


def _show_live(looks: Iterator[_Look], pause_s: float) -> None:
    from rich.live import Live

    from gpu_platform.cli.show import show_top

    with _keys() as pressed, Live(console=session.out(), auto_refresh=False, screen=False) as live:
        for look in looks:
            live.update(show_top.table(look.job, look.as_json(), look.history), refresh=True)
            if pressed(pause_s):
                return


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds, and says whether ``q`` was typed meanwhile."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return

    def pressed(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                key = sys.stdin.buffer.raw.read(1)  # type: ignore[attr-defined]
                if key in (b"q", b"Q", b"\x04", b""):
                    return True
        return False

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
