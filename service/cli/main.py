"""``gpu-platform``: the command line. It talks REST through :mod:`gpu_platform.client`; ``simulate`` works alone."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from service.cli import session, simulate, up
from service.cli.access import keys, login, secrets, tokens
from service.cli.cluster import alerts, audit, fleet, hosts, identity, inject, queue, remediation, report, status, usage
from service.cli.jobs import exec as exec_command
from service.cli.jobs import jobs, pipelines, schedules
from service.cli.simulating import machines
from service.cli.submitting import submit

EPILOG = (
    "Exit codes: 0 done, 1 the job failed, 2 wrong usage, 3 not found, 4 conflict, 5 service away, "
    "6 not signed in or not allowed, 130 interrupted; submit --wait returns the job's own."
)


class Commands(TyperGroup):
    """The commands. Who leaves out the group of one is told: ``logs`` is ``jobs logs``."""

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
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_jobs = (submit, jobs, pipelines, schedules, exec_command)
_cluster = (status, queue, usage, report, hosts, identity, remediation, audit, alerts)
for module in (up, *_jobs, *_cluster, login, tokens, secrets, keys, simulate, machines, inject, fleet):
    module.register(app)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"gpu-platform {version('gpu-platform')}")
        raise typer.Exit


@app.callback()
def _global(
    api_url: Annotated[
        str | None,
        typer.Option(help="Where the service is; default GPU_PLATFORM_API_URL, then http://127.0.0.1:8700."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    if api_url:
        os.environ["GPU_PLATFORM_API_URL"] = api_url
        os.environ.pop("GPU_PLATFORM_API_URLS", None)  # they may be of another cluster


TRACE_TO = "GPU_PLATFORM_TRACING__ENDPOINT"


def _run_traced() -> None:
    """A trace begins with this command, and goes on in the service."""
    from gpu_platform import tracing

    tracing.start_tracing("cli", tracing.TracingSettings(endpoint=os.environ[TRACE_TO]))
    try:
        with tracing.span(" ".join(["gpu-platform", *(word for word in sys.argv[1:2] if not word.startswith("-"))])):
            app()
    finally:
        tracing.stop_tracing()


def run() -> None:
    """The entry point of ``gpu-platform``. Turns every error into one line on stderr and an exit code."""
    try:
        if os.environ.get(TRACE_TO):
            _run_traced()
        else:
            app()
    except Exception as error:
        # Imported only now: most runs never need it.
        from gpu_platform.domain.errors import PlatformError

        if not isinstance(error, PlatformError):
            raise
        session.say(f"Error: {error.message}")
        sys.exit(session.exit_code_of(error))


if __name__ == "__main__":
    run()
