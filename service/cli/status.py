"""``gpu-platform status|health|watch``: the cluster at a glance, one GPU's health, and both again and again."""

from __future__ import annotations

import json as json_module
import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import session

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.gpu import Gpu, Host
    from gpu_platform.domain.job import Job

MAX_JOBS = 50


def register(app: typer.Typer) -> None:
    for command in (status, health, watch):
        app.command()(command)


def status(
    everything: Annotated[bool, typer.Option("--all", help="Every host and GPU.")] = False, json: session.Json = False
) -> None:
    """The cluster at a glance: hosts, GPUs, jobs that wait or run."""
    with session.service() as client:
        hosts, gpus, jobs = _look(client)
    if json:
        session.print_json(_as_json(hosts, gpus, jobs))
        return
    from service.cli import show

    session.show(show.cluster(hosts, gpus, jobs, MAX_JOBS, everything))


def health(
    gpu_id: Annotated[
        str | None, typer.Option(help="uuid, the beginning of one, or host:index; default: all GPUs.")
    ] = None,
    json: session.Json = False,
) -> None:
    """Health of one GPU, with what happened to it, or of all. Returns 1 if one of them is out of service."""
    from gpu_platform.domain.states import GpuState

    with session.service() as client:
        gpus = [client.gpu(gpu_id)] if gpu_id else list(client.gpus())
        events = client.gpu_events(gpu_id) if gpu_id else []
    if json:
        story = [event.model_dump(mode="json") for event in events]
        session.print_json({**gpus[0].model_dump(mode="json"), "events": story} if gpu_id else gpus)
    else:
        from service.cli import show

        session.show(show.gpus_table(gpus))
        if events:
            session.show(show.gpu_history(events))
    ill = {GpuState.DEGRADED, GpuState.RESETTING, GpuState.OFFLINE, GpuState.DRAINING, GpuState.DRAINED}
    raise typer.Exit(session.FAILED if any(gpu.state in ill for gpu in gpus) else 0)


def watch(
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS")] = 2.0,
    everything: Annotated[bool, typer.Option("--all", help="Every host and GPU.")] = False,
    json: session.Json = False,
) -> None:
    """The status again and again, until Ctrl-C. With --json one line each time."""
    with session.service() as client:
        if json:
            while True:
                typer.echo(json_module.dumps(_as_json(*_look(client))))
                time.sleep(interval)
        from rich.live import Live

        from service.cli import show

        with Live(console=session.out(), auto_refresh=False) as live:
            while True:
                live.update(show.cluster(*_look(client), MAX_JOBS, everything), refresh=True)
                time.sleep(interval)


def _look(client: Client) -> tuple[list[Host], list[Gpu], list[Job]]:
    from gpu_platform.domain.states import JobState

    live = [state for state in JobState if not state.is_terminal]
    # One more than is shown tells that there are more.
    jobs = list(islice(client.list(states=live, page_size=MAX_JOBS + 1), MAX_JOBS + 1))
    return list(client.hosts()), list(client.gpus()), jobs


def _as_json(hosts: list[Host], gpus: list[Gpu], jobs: list[Job]) -> dict[str, Any]:
    return {
        "hosts": [host.model_dump(mode="json") for host in hosts],
        "gpus": [gpu.model_dump(mode="json") for gpu in gpus],
        "jobs": [job.model_dump(mode="json") for job in jobs[:MAX_JOBS]],
    }
