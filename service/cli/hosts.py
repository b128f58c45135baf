"""``gpu-platform drain|online|offline|hosts remove``: take hosts (and single GPUs) out of service and put them back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import session

if TYPE_CHECKING:
    from gpu_platform.domain.gpu import Gpu, Host

_LOOK_S = 1.0
"""How often --wait looks."""

HostName = Annotated[str, typer.Argument(metavar="HOST", help="Host name.", show_default=False)]
Target = Annotated[
    str, typer.Argument(metavar="HOST|GPU", help="Host name; or one GPU as host:index or uuid.", show_default=False)
]


hosts = typer.Typer(help="What is done to hosts for good.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    for command in (drain, online, offline):
        app.command()(command)
    hosts.command()(remove)
    app.add_typer(hosts, name="hosts")


def remove(host: HostName) -> None:
    """Forget a host that is LOST or DRAINED and holds nothing. Its usage and events stay."""
    with session.service() as client:
        client.remove_host(host)
    session.say(f"{host} is removed; if its node worker reports again, it is a new host")


def drain(
    host: HostName,
    force: session.Yes = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing is left there.")] = False,
    reason: session.Why = "",
    json: session.Json = False,
) -> None:
    """No new work for a host; what runs there goes on. With --force it is preempted and goes on elsewhere."""
    with session.service(session.FOLLOW_PATIENCE_S if wait else 5.0) as client:
        found = client.drain(host, force=force, reason=reason)
        while wait and found.state == "DRAINING":
            time.sleep(_LOOK_S)
            found = client.host(host)
        _tell(found, json)
    if wait and found.state != "DRAINED":
        raise typer.Exit(session.FAILED)


def online(target: Target, reason: session.Why = "", json: session.Json = False) -> None:
    """Put a host, or a GPU, back into service."""
    with session.service() as client:
        _tell(client.gpu_online(target, reason) if _is_gpu(target) else client.online(target, reason), json)


def offline(target: Target, force: session.Yes = False, reason: session.Why = "", json: session.Json = False) -> None:
    """Take a host, or a GPU, out of service at once. Refused while jobs run there; --force kills them."""
    with session.service() as client:
        if _is_gpu(target):
            _tell(client.gpu_offline(target, force=force, reason=reason), json)
        else:
            _tell(client.offline(target, force=force, reason=reason), json)


def _is_gpu(target: str) -> bool:
    return ":" in target or target.startswith(("GPU-", "MIG-"))


def _tell(thing: Host | Gpu, json: bool) -> None:
    if json:
        session.print_json(thing)
        return
    name = getattr(thing, "name", None) or f"{thing.host}:{thing.info.index}"  # type: ignore[union-attr]
    session.say(f"{name} is {thing.state}" + (f": {thing.reason}" if thing.reason else ""))
