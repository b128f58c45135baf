"""``gpu-platform metrics``: what GPUs did in the last hours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.slurm.ids import id_of

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.hosts.samples import MetricsHistory

_JOB = re.compile(r"j-[0-9a-z]{15}|a-[0-9a-z]{15}\.[0-9]{1,7}")

Target = Annotated[
    str,
    typer.Argument(
        parser=id_of,
        metavar="GPU|HOST|JOB",
        help="One GPU as host:index or uuid; all GPUs of a host; or those of a job, while it held them.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command ``metrics``."""
    app.command()(metrics)


def metrics(
    target: Target,
    window: Annotated[
        str, typer.Option(help="How far back, e.g. 15m, 24h or 7d. Of a job that has ended: before its end.")
    ] = "1h",
    json: session.Json = False,
) -> None:
    """Mean, percentiles and course of utilisation, memory, temperature and power."""
    window_s = parsing.whole_s(window)
    with session.service() as client:
        found = _asked(client, target, window_s)
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_metrics

    session.show(show_metrics.history(target, found))


def _asked(client: Client, target: str, window_s: int) -> MetricsHistory:
    if _JOB.fullmatch(target):
        return client.metrics.of_job(target, window_s=window_s)
    if ":" in target or target.startswith(("GPU-", "MIG-")):
        return client.metrics.of_gpu(target, window_s=window_s)
    return client.metrics.of_host(target, window_s=window_s)
