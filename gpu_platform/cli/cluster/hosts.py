"""``gpu-platform drain|online|offline|hosts …``: see hosts, take them or single GPUs out of service, put them back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import completion, session
from gpu_platform.cli.cluster import checkpoint_roots, enrolment
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.session import HostName
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.client import calls

if TYPE_CHECKING:
    from gpu_platform.domain.hosts.gpu import Gpu, Host

_LOOK_S = 1.0
"""Seconds between two looks of --wait."""

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="HOST|GPU",
        help="Host name; or one GPU as host:index or uuid.",
        show_default=False,
        autocompletion=completion.host_names,
    ),
]
GpuId = Annotated[
    str | None, typer.Option("--gpu-id", metavar="GPU", help="One GPU, instead of HOST|GPU: host:index or uuid.")
]


hosts = typer.Typer(help="List hosts, describe one, and forget or give up hosts for good.", no_args_is_help=True)


_MEANING = {
    "DRAINING": "no new work; what runs there goes on",
    "DRAINED": "no work until `gpu-platform online {name}`",
    "OFFLINE": "no work until `gpu-platform online {name}`",
    "LOST": "it does not report",
}
"""State -> what it means, for states that a command may leave behind."""


def register(app: typer.Typer) -> None:
    """Add the commands for hosts and GPUs."""
    for command in (drain, online, offline):
        app.command()(command)
    hosts.command("list")(list_hosts)
    hosts.command()(describe)
    hosts.command()(remove)
    hosts.command("declare-lost")(declare_lost)
    checkpoint_roots.register(hosts)
    enrolment.register(hosts)
    app.add_typer(hosts, name="hosts")


@grouped_options
def list_hosts(*, shown: ListingOptions) -> None:
    """Every host: its state, free GPUs and lease."""
    found = shown.listing(list_columns.HOSTS)
    with session.service() as client:
        found.show(client.json_pages(calls.hosts))


def describe(host: HostName, json: session.Json = False) -> None:
    """One host: machine, driver, CUDA, isolation and what it cannot guarantee; and its GPUs."""
    with session.service() as client:
        found = client.host(host)
        gpus = [] if json else [gpu for gpu in client.gpus() if gpu.host == found.name]
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_host

    session.show(show_host.host_details(found, gpus))


def remove(host: HostName) -> None:
    """Forget a host that is LOST or DRAINED, holds nothing and does not report. Its usage and events stay."""
    with session.service() as client:
        client.remove_host(host)
    session.say(f"{host} is removed; if its node worker reports again, it is a new host")


def declare_lost(
    names: Annotated[list[str], typer.Argument(metavar="HOST...", help="Host names.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also if the host still reports.")] = False,
    reason: session.ReasonOption = "",
) -> None:
    """Say that hosts are dead, so that their jobs start elsewhere now.

    Use it when the platform holds its verdict back (too many hosts are silent at once), or for jobs with
    --fencing strict. Be sure: if a host is only cut off, its ranks and the new ones run at the same time.
    """
    risk = (
        f"{', '.join(names)}: if one of them is not dead but cut off, its ranks go on while their jobs start "
        "elsewhere; both may write the same files. Is the power off, or have you looked?"
    )
    if not yes:
        typer.confirm(risk, abort=True)
    with session.service() as client:
        for name in names:
            found = client.declare_lost(name, force=force, reason=reason)
            session.say(f"{name} is {found.state}: {found.reason}")


def drain(
    target: Target = None,
    gpu_id: GpuId = None,
    force: session.Yes = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nothing is left there.")] = False,
    reason: session.ReasonOption = "",
    json: session.Json = False,
) -> None:
    """Give a host, or a GPU, no new work. What runs there goes on; --force preempts it, so that it goes on
    elsewhere."""
    name, is_gpu = _meant(target, gpu_id)
    with session.service(session.FOLLOW_PATIENCE_S if wait else 5.0) as client:
        look: Callable[[str], Host | Gpu] = client.gpu if is_gpu else client.host
        found = (client.gpu_drain if is_gpu else client.drain)(name, force=force, reason=reason)
        while wait and found.state == "DRAINING":
            time.sleep(_LOOK_S)
            found = look(name)
        _show_state(found, json)
    if wait and found.state != "DRAINED":
        raise typer.Exit(session.FAILED)


def online(
    target: Target = None, gpu_id: GpuId = None, reason: session.ReasonOption = "", json: session.Json = False
) -> None:
    """Put a host, or a GPU, back into service."""
    name, is_gpu = _meant(target, gpu_id)
    with session.service() as client:
        _show_state((client.gpu_online if is_gpu else client.online)(name, reason), json)


def offline(
    target: Target = None,
    gpu_id: GpuId = None,
    force: session.Yes = False,
    reason: session.ReasonOption = "",
    json: session.Json = False,
) -> None:
    """Take a host, or a GPU, out of service at once. Refused while jobs run there; --force kills them."""
    name, is_gpu = _meant(target, gpu_id)
    with session.service() as client:
        _show_state((client.gpu_offline if is_gpu else client.offline)(name, force=force, reason=reason), json)


def _meant(target: str | None, gpu_id: str | None) -> tuple[str, bool]:
    """The name, and whether it names a GPU."""
    if (target is None) == (gpu_id is None):
        given = "neither was given" if target is None else "both were given"
        raise typer.BadParameter(f"name a HOST or a GPU, or one GPU with --gpu-id; {given}")
    if gpu_id is not None:
        return gpu_id, True
    assert target is not None
    return target, ":" in target or target.startswith(("GPU-", "MIG-"))


def _show_state(thing: Host | Gpu, json: bool) -> None:
    if json:
        session.print_json(thing)
        return
    name = getattr(thing, "name", None) or f"{thing.host}:{thing.info.index}"  # type: ignore[union-attr]
    meaning = _MEANING.get(thing.state.value, "").format(name=name)
    text = f"{name} is {thing.state}" + (f": {thing.reason}" if thing.reason else "")
    session.say(f"{text}; {meaning}" if meaning else text)
