"""``gpu-platform up``: the whole platform on this machine."""

from __future__ import annotations

import typer

from gpu_platform.cli.local.programs import become_program


def register(app: typer.Typer) -> None:
    """Add the command ``up``, which parses its own options."""
    app.command(
        "up",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(up)


def up(context: typer.Context) -> None:
    """Run everything on this machine: Temporal, database, service, scheduler, node workers. Ctrl-C stops it."""
    become_program("workers.local.up", *context.args)
