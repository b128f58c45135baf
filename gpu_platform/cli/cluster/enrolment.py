"""``gpu-platform hosts enroll|revoke``: which hosts may join."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.cli.session import HostName


def register(hosts: typer.Typer) -> None:
    """Add the commands to ``hosts``."""
    hosts.command()(enroll)
    hosts.command()(revoke)


def enroll(
    host: HostName,
    address: Annotated[
        str | None, typer.Option(help="Where its node worker is reached, if not at the address it reports from.")
    ] = None,
    valid: Annotated[float, typer.Option("--valid", min=1, max=604_800, help="Seconds that the token works.")] = 3600,
) -> None:
    """Print a join token, by which a new host gets its first certificate. It works once, for this name only."""
    with session.service() as client:
        made = client.enroll_host(host, address=address, valid_s=valid)
    session.write(made.join_token or made.node_token or "")
    if made.join_token is not None:
        session.say(
            f"on {host}: GPU_PLATFORM_NODE__JOIN_TOKEN or node.join_token_file; it works until {made.expires_at}"
        )
    else:
        session.say(f"the service uses no TLS. On {host}: GPU_PLATFORM_NODE__TOKEN or node.token_file")


def revoke(host: HostName) -> None:
    """Believe the host's certificates no more, until it is enrolled again. Its jobs end with its lease."""
    with session.service() as client:
        client.revoke_host(host)
    session.say(f"{host} is revoked; `gpu-platform hosts enroll {host}` lets it join again")
