"""``gpu-platform doctor``: checks the deployment from this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.cli.local.programs import become_program

Role = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="What this machine is: control-plane, host or client; may be repeated. Default: found out from its "
        "settings and files.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command ``doctor``."""
    app.command()(doctor)


def doctor(role: Role = None, json: session.Json = False) -> None:
    """Check the deployment from this machine: what is reachable, versions, clocks, schema, isolation, GPUs,
    certificates; and say what to do. Returns 1 if a check failed."""
    arguments = [part for one in role or [] for part in ("--role", one)] + (["--json"] if json else [])
    become_program("workers.doctor", *arguments)
