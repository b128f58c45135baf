"""``gpu-platform fleet``: break hosts of a fleet that runs on this machine, by name, by rack or at a rate."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions

app = typer.Typer(help="Break and heal the simulated hosts of a fleet on this machine.", no_args_is_help=True)

Hosts = Annotated[list[str] | None, typer.Argument(help="Names or patterns, e.g. rack0007 or 'rack00*'.")]
Leaf = Annotated[list[str] | None, typer.Option(help="All hosts below this leaf; may be repeated.")]
StateDir = Annotated[Path | None, typer.Option(help="That of `up`; default: that of the settings.")]
Xid = Annotated[list[int] | None, typer.Option(min=0, help="The XID; may be repeated with `--per-hour`.")]


def register(root: typer.Typer) -> None:
    """Add the group ``fleet``."""
    root.add_typer(app, name="fleet")


@app.command("list")
@grouped_options
def list_hosts(state_dir: StateDir = None, *, listing: ListingOptions) -> None:
    """Print each host of a fleet, its leaf, and whether it has power."""
    from gpu_platform.cli.show.list_columns import FLEET
    from gpu_platform.node.fleet.register import fleet_hosts
    from gpu_platform.node.nvml.fault_injection import has_power

    shown = listing.listing(FLEET)
    shown.show(
        {"host": name, "leaf": leaf, "power": "on" if has_power(_control(state_dir, name)) else "off"}
        for name, leaf in fleet_hosts(_state(state_dir)).items()
    )


@app.command()
def off(hosts: Hosts = None, leaf: Leaf = None, state_dir: StateDir = None) -> None:
    """Switch hosts off, as a power loss does: their ranks are gone, and they report no more."""
    _switch(hosts, leaf, state_dir, on=False)


@app.command()
def on(hosts: Hosts = None, leaf: Leaf = None, state_dir: StateDir = None) -> None:
    """Switch hosts on again."""
    _switch(hosts, leaf, state_dir, on=True)


@app.command()
def strike(
    hosts: Hosts = None,
    leaf: Leaf = None,
    xid: Xid = None,
    gpu: Annotated[int | None, typer.Option(min=0, help="Index of the GPU on each host; default: any.")] = None,
    per_hour: Annotated[
        float | None,
        typer.Option(min=0.001, help="At random times so often in an hour, on one of the hosts, until Ctrl-C."),
    ] = None,
    lasting: Annotated[str | None, typer.Option("--for", help="With --per-hour: end after so long, e.g. 30m.")] = None,
    state_dir: StateDir = None,
) -> None:
    """Let GPUs report an XID: one on each of the hosts now, or at a rate."""
    chosen, xids = _select(hosts, leaf, state_dir), xid or [79]
    if per_hour is None:
        for name in chosen:
            _strike(state_dir, name, gpu, random.choice(xids))
        session.say(f"{len(chosen)} GPUs reported an XID")
        return
    ends = None if lasting is None else time.monotonic() + parsing.duration_s(lasting)
    while True:
        pause_s = random.expovariate(per_hour / 3600)
        if ends is not None and time.monotonic() + pause_s > ends:
            time.sleep(max(0.0, ends - time.monotonic()))
            return
        time.sleep(pause_s)
        name, number = random.choice(chosen), random.choice(xids)
        session.say(f"XID {number} on GPU {_strike(state_dir, name, gpu, number)} of {name}")


def _strike(state_dir: Path | None, host: str, gpu: int | None, xid: int) -> int:
    from gpu_platform.node.nvml.fault_injection import inject_fault, read_gpu_count

    control = _control(state_dir, host)
    index = random.randrange(read_gpu_count(control) or 1) if gpu is None else gpu
    inject_fault(control, index, xid=xid)
    return index


def _switch(hosts: list[str] | None, leaf: list[str] | None, state_dir: Path | None, *, on: bool) -> None:
    from gpu_platform.node.nvml.fault_injection import switch_power

    chosen = _select(hosts, leaf, state_dir)
    for name in chosen:
        switch_power(_control(state_dir, name), on=on)
    session.say(f"{len(chosen)} hosts are switched {'on' if on else 'off'}")


def _select(hosts: list[str] | None, leaf: list[str] | None, state_dir: Path | None) -> list[str]:
    from gpu_platform.node.fleet.register import select_hosts

    if not hosts and not leaf:
        raise typer.BadParameter("say which hosts: names, patterns or --leaf")
    return select_hosts(_state(state_dir), hosts or [], leaf or [])


def _state(state_dir: Path | None) -> Path:
    from gpu_platform.settings.reading import read_settings

    return state_dir or read_settings().state_dir


def _control(state_dir: Path | None, host: str) -> Path:
    from gpu_platform.node.system.paths import control_dir, node_dir

    return control_dir(node_dir(_state(state_dir), host))
