"""``gpu-platform``: the command line. It talks REST through :mod:`gpu_platform.client`; ``simulate`` works alone."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpu_platform.cli import completion
from gpu_platform.cli.commands import LazyCommands
from gpu_platform.cli.main import print_version
from gpu_platform.cli.plain_values import read_plainly
from gpu_platform.cli.show import times

EPILOG = (
    "Exit codes: 0 done, 1 the job failed, 2 wrong usage, 3 not found, 4 conflict, 5 service away, "
    "6 not signed in or not allowed, 130 interrupted; submit --wait returns the job's own."
)


class Commands(TyperGroup):
    """The commands. Who leaves out the group of one is told: ``logs`` is ``jobs logs``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        read_plainly(self)
        self.commands = LazyCommands()

    def _main_shell_completion(self, *arguments: Any, **more: Any) -> None:
        """See click. Typer teaches itself the shells only where it has an option that installs the script."""
        if os.environ.get(completion.ASKED_BY):
            from typer._completion_classes import completion_init

            completion_init()
        super()._main_shell_completion(*arguments, **more)

    def list_commands(self, ctx: Any) -> list[str]:
        """See click. No command is imported for its name."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click."""
        asked = args[0]
        if asked not in self.commands:
            groups = [(name, group) for name, group in self.commands.items() if isinstance(group, TyperGroup)]
            meant = [f"'{ctx.info_name} {name} {asked}'" for name, group in groups if asked in group.commands]
            if meant:
                ctx.fail(f"No such command '{asked}'. Did you mean {' or '.join(meant)}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    name="gpu-platform",
    help="Run jobs on your GPU hosts.",
    epilog=EPILOG,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,  # `gpu-platform completion` prints the script
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print_version()
        raise typer.Exit


def ask_only(api_url: str) -> None:
    """Ask the service there, and no other one."""
    os.environ["GPU_PLATFORM_API_URL"] = api_url
    os.environ.pop("GPU_PLATFORM_API_URLS", None)  # they may be of another cluster


@app.callback()
def _global(
    context: typer.Context,
    api_url: Annotated[
        str | None,
        typer.Option(help="Where the service is; default GPU_PLATFORM_API_URL, then http://127.0.0.1:8700."),
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(help="rest or grpc; default GPU_PLATFORM_TRANSPORT, then rest.", metavar="NAME"),
    ] = None,
    utc: Annotated[bool, typer.Option("--utc", help="Show times as UTC, not in the zone of this machine.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    if api_url:
        ask_only(api_url)
    if transport:
        from gpu_platform.client.connection import TRANSPORT_VARIABLE

        os.environ[TRANSPORT_VARIABLE] = transport
    if utc:
        times.show_utc()
    if context.invoked_subcommand is None:
        from gpu_platform.cli import start_page

        start_page.show()
