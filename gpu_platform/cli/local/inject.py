"""``gpu-platform inject``: inject a fault into a simulated GPU. For development and demonstrations; hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpu_platform.cli import session


def register(app: typer.Typer) -> None:
    """Add the hidden command ``inject``."""
    app.command("inject", hidden=True)(inject)


def inject(
    host: Annotated[str, typer.Option(help="A simulated host of this machine.")],
    gpu: Annotated[int, typer.Option(min=0, help="Index of the GPU there.")],
    xid: Annotated[int | None, typer.Option(min=0, help="The XID to inject.")] = None,
    temperature: Annotated[int | None, typer.Option(help="Degrees Celsius from now on.")] = None,
    utilization: Annotated[int | None, typer.Option(min=0, max=100, help="Percent from now on.")] = None,
    lost: Annotated[bool, typer.Option("--lost", help="The GPU falls off the bus.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="As if nothing had happened.")] = False,
    state_dir: Annotated[Path | None, typer.Option(help="Default: that of the settings.")] = None,
) -> None:
    """Inject a fault into a GPU of a simulated host."""
    from gpu_platform.node.nvml.fault_injection import inject_fault, read_gpu_count
    from gpu_platform.node.system.paths import control_dir, node_dir
    from gpu_platform.settings.reading import read_settings

    if xid is None and temperature is None and utilization is None and not lost and not clear:
        raise typer.BadParameter("say what happens: --xid, --temperature, --utilization, --lost or --clear")
    control = control_dir(node_dir(state_dir or read_settings().state_dir, host))
    if not control.is_dir():
        session.say(f"Error: there is no simulated host {host!r}: {control} does not exist")
        raise typer.Exit(session.NOT_FOUND)
    count = read_gpu_count(control)
    if count is not None and gpu >= count:
        session.say(f"Error: host {host!r} has no GPU {gpu}: it has {count}, numbered 0 to {count - 1}")
        raise typer.Exit(session.NOT_FOUND)
    inject_fault(
        control,
        gpu,
        xid=xid,
        temperature_c=temperature,
        utilization_percent=utilization,
        lost=lost or None,
        clear=clear,
    )
    session.say(f"injected into GPU {gpu} of {host}")
