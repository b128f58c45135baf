"""The entry point of ``gpu-platform``. The commands are in ``app.py``; what a command does not need is not imported."""

from __future__ import annotations

import os
import sys

TRACE_TO = "GPU_PLATFORM_TRACING__ENDPOINT"


def run() -> None:
    """Run the command. Turns every error into a line on stderr, another one with the next step, and an exit code."""
    if sys.argv[1:] == ["--version"]:  # it needs no parser of options, which takes longer than all the rest
        print_version()
        return
    from gpu_platform.cli.app import app

    try:
        if os.environ.get(TRACE_TO):
            _run_traced()
        else:
            app()
    except Exception as error:
        # Imported only now: most runs never need it.
        from gpu_platform.cli import session
        from gpu_platform.cli.local.programs import needs_cluster
        from gpu_platform.cli.next_steps import next_step
        from gpu_platform.domain.errors import PlatformError

        if isinstance(error, ModuleNotFoundError):
            error = needs_cluster(str(error.name))
        if not isinstance(error, PlatformError):
            raise
        session.say(f"Error: {error.message}")
        if (step := next_step(error.code, error.message)) is not None:
            session.say(f"Next: {step}")
        sys.exit(session.exit_code_of(error))


def print_version() -> None:
    """Print the version of the installed package."""
    from importlib.metadata import version

    print(f"gpu-platform {version('gpu-platform')}")


def _run_traced() -> None:
    """A trace begins with this command, and goes on in the service."""
    from gpu_platform import tracing
    from gpu_platform.cli.app import app

    tracing.start_tracing("cli", os.environ[TRACE_TO])
    try:
        with tracing.span(" ".join(["gpu-platform", *(word for word in sys.argv[1:2] if not word.startswith("-"))])):
            app()
    finally:
        tracing.stop_tracing()


if __name__ == "__main__":
    run()
