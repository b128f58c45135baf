"""``gpu-platform status|health|watch``: the cluster at a glance, one GPU's health, and both again and again."""

from __future__ import annotations

import json as json_module
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.jobs.listing import recent
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import Listing, ListingOptions
from gpu_platform.client import calls

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from gpu_platform.client import Client
    from gpu_platform.domain.hosts.gpu import GpuHealth

MAX_JOBS = 50
SHORTEST_S = 0.1

Wide = Annotated[bool, typer.Option("--wide", help="Show the uuid of each GPU.")]


def register(app: typer.Typer) -> None:
    """Add the commands ``status``, ``health`` and ``watch``."""
    for command in (status, health, watch):
        app.command()(command)


def status(
    everything: Annotated[bool, typer.Option("--all", help="Show every host and GPU.")] = False,
    wide: Wide = False,
    json: session.Json = False,
) -> None:
    """Show the cluster at a glance: hosts, GPUs, jobs that wait or run."""
    with session.service() as client:
        warnings = _warnings(client)
        if json:
            session.print_json(_as_json(client) | {"warnings": warnings})
            return
        shown = _cluster(client, everything, wide)
    for warning in warnings:
        session.say(f"warning: {warning}")
    session.show(shown)


@grouped_options
def health(
    gpu_id: Annotated[
        str | None, typer.Option(help="uuid, the beginning of one, or host:index; default: all GPUs.")
    ] = None,
    wide: Wide = False,
    *,
    shown: ListingOptions,
) -> None:
    """Show one GPU (what it is, what its host measures, what happened to it), or all. Returns 1 if one is out of
    service."""
    from gpu_platform.cli.show import show_gpu, tables
    from gpu_platform.domain.states import GpuState

    listing = shown.listing(list_columns.GPUS)
    with session.service() as client:
        gpus = [client.gpu(gpu_id)] if gpu_id else list(client.gpus())
        events = client.gpu_events(gpu_id) if gpu_id else []
    measured, away = _measured(gpu_id) if gpu_id else (None, None)
    if not gpu_id:
        rows = [gpu.model_dump(mode="json") for gpu in gpus]
        listing.show(rows, lambda _: show_gpu.gpus_table(gpus, wide))
    elif listing.shape == "json":
        story = [event.model_dump(mode="json") for event in events]
        now = None if measured is None else measured.model_dump(mode="json")
        one = {**gpus[0].model_dump(mode="json"), "health": now, "events": story}
        session.print_json(one)
    else:
        session.show(show_gpu.gpu_details(gpus[0], measured, away))
        if events:
            session.say("")
            session.show(tables.gpu_history(events))
    ill = {GpuState.DEGRADED, GpuState.RESETTING, GpuState.OFFLINE, GpuState.DRAINING, GpuState.DRAINED}
    raise typer.Exit(session.FAILED if any(gpu.state in ill or tables.is_unavailable(gpu) for gpu in gpus) else 0)


def watch(
    interval: Annotated[
        float | None,
        typer.Option(parser=parsing.duration_s, metavar="TIME", help="1s, 500ms, 2m; at least 100ms; default: 2s."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every host and GPU.")] = False,
    wide: Wide = False,
    json: session.Json = False,
) -> None:
    """Show the status again and again, until Ctrl-C. With --json one line each time."""
    pause_s = 2.0 if interval is None else interval
    if pause_s < SHORTEST_S:
        raise typer.BadParameter(f"--interval {pause_s:g}s is too short: at least {SHORTEST_S:g}s")
    with session.service() as client:
        if json:
            while True:
                session.write(json_module.dumps(_as_json(client)))
                time.sleep(pause_s)
        from rich.live import Live

        with Live(console=session.out(), auto_refresh=False) as live:
            while True:
                live.update(_cluster(client, everything, wide), refresh=True)
                time.sleep(pause_s)


def _cluster(client: Client, everything: bool, wide: bool) -> Group:
    """Counts come from the database: every host and GPU is read only where every one is shown."""
    from gpu_platform.cli.show import show_gpu, tables

    more: list[RenderableType] = []
    if everything or wide:
        hosts = Listing(list_columns.HOSTS).table(client.json_pages(calls.hosts))
        more = [hosts, show_gpu.gpus_table(list(client.gpus()), wide)]
    return tables.cluster(client.counts(), _living(client), MAX_JOBS, more)


def _measured(gpu_id: str) -> tuple[GpuHealth | None, str | None]:
    """What its host measures now, or why it measures nothing."""
    from gpu_platform.domain.errors import PlatformError

    try:
        with session.service(patience_s=0.0) as client:
            return client.gpu_health(gpu_id), None
    except PlatformError as error:
        return None, error.message


def _living(client: Client) -> list[dict[str, Any]]:
    from gpu_platform.domain.states import JobState

    live = [state.value for state in JobState if not state.is_terminal]
    # Ask for one more than is shown, to know whether there are more.
    return recent(client, live, {}, MAX_JOBS + 1)


def _warnings(client: Client) -> list[str]:
    from gpu_platform.domain.errors import Unavailable

    try:
        return client.ready().warnings
    except Unavailable as error:
        return [error.message]


def _as_json(client: Client) -> dict[str, Any]:
    return {
        "cluster": client.counts().name,
        "hosts": [host.model_dump(mode="json") for host in client.hosts()],
        "gpus": [gpu.model_dump(mode="json") for gpu in client.gpus()],
        "jobs": _living(client)[:MAX_JOBS],
    }
