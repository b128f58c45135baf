"""``gpu-platform completion``: the script by which a shell completes commands, options, and names of jobs and hosts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from gpu_platform.client import Client

ASKED_BY = "_GPU_PLATFORM_COMPLETE"
"""The variable by which the script asks typer for completions."""
_LIMIT_S = 0.7
"""Nobody waits longer for a Tab. No service, or a slow one: there are no names."""
_MOST = 100
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of the platform. The script of zsh evaluates what is offered, so nothing else may come from a service."""
_KEPT_S = 10.0
"""Somebody who presses Tab several times waits once."""
_WHO = (
    *("GPU_PLATFORM_API_URL", "GPU_PLATFORM_API_URLS", "GPU_PLATFORM_USER"),
    *("GPU_PLATFORM_TOKEN", "GPU_PLATFORM_TOKEN_FILE", "XDG_CONFIG_HOME"),
)


def register(app: typer.Typer) -> None:
    """Add the command ``completion``."""
    app.command()(completion)


def completion(
    context: typer.Context,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that shall complete.")],
) -> None:
    """Print the script that completes commands, options, jobs and hosts; for bash: source <(gpu-platform completion
    bash) in ~/.bashrc."""
    # Typer prints the script when it is asked by this variable, and ends the process.
    os.environ[ASKED_BY] = f"source_{shell}"
    context.find_root().command.main(args=[], prog_name="gpu-platform")


def job_names(incomplete: str) -> list[str]:
    """The newest jobs and arrays whose ids begin like this."""
    from gpu_platform.client import calls

    def ids(client: Client) -> list[str]:
        found = [*client.json(calls.jobs(None, None, None, None, None, None, _MOST))["items"]]
        found += client.json(calls.arrays(None, None, None, None, None, None, _MOST))["items"]
        newest_first = sorted(found, key=lambda one: one["created_at"], reverse=True)
        return [one["id"] for one in newest_first]

    return _names("jobs", ids, incomplete)


def array_names(incomplete: str) -> list[str]:
    """The newest arrays whose ids begin like this."""
    from gpu_platform.client import calls

    found = calls.arrays(None, None, None, None, None, None, _MOST)
    return _names("arrays", lambda client: [one["id"] for one in client.json(found)["items"]], incomplete)


def names_of_jobs(incomplete: str) -> list[str]:
    """The names of the newest jobs that begin like this."""
    from gpu_platform.client import calls

    found = calls.jobs(None, None, None, None, None, None, _MOST)
    names = lambda client: sorted({one["spec"]["name"] for one in client.json(found)["items"]})  # noqa: E731
    return _names("names", names, incomplete)


def host_names(incomplete: str) -> list[str]:
    """The hosts whose names begin like this."""
    from gpu_platform.client import calls

    return _names("hosts", lambda client: [one["name"] for one in client.json_pages(calls.hosts)], incomplete)


def namespace_names(incomplete: str) -> list[str]:
    """The namespaces of one's own roles and those with quotas that begin like this."""
    from gpu_platform.client import access_calls, calls

    def names(client: Client) -> list[str]:
        own = {name for name in client.json(access_calls.who_am_i())["roles"] if name != "*"}
        return sorted(own | {one["name"] for one in client.json_pages(calls.quotas)} or {"default"})

    return _names("namespaces", names, incomplete)


def pipeline_names(incomplete: str) -> list[str]:
    """The newest pipelines whose ids begin like this."""
    from gpu_platform.client import pipeline_calls

    found = pipeline_calls.pipelines(None, None)
    return _names("pipelines", lambda client: [one["id"] for one in client.json(found)["items"]], incomplete)


def schedule_names(incomplete: str) -> list[str]:
    """The schedules whose ids begin like this."""
    from gpu_platform.client import schedule_calls

    found = schedule_calls.schedules(None, None)
    return _names("schedules", lambda client: [one["id"] for one in client.json(found)["items"]], incomplete)


def _names(what: str, ask: Callable[[Client], list[str]], incomplete: str) -> list[str]:
    """The names that begin like this, from the last seconds' answer or from the service."""
    known = _kept(what)
    if known is None:
        known = _asked(ask)
        if known is not None:
            _keep(what, known)
    return [name for name in known or () if name.startswith(incomplete) and _PLAIN.fullmatch(name)][:_MOST]


def _asked(ask: Callable[[Client], list[str]]) -> list[str] | None:
    """What the service says. None: it did not answer in time."""
    from gpu_platform.cli import session

    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        with session.service(patience_s=0.0) as client:
            return ask(client)
    except Exception:  # a message would stand in the middle of what somebody types
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _give_up(*_: object) -> None:
    raise TimeoutError


def _file_of(what: str) -> Path:
    """One file for each service and way to sign in: another user's names are not offered."""
    who = "\0".join(os.environ.get(name, "") for name in _WHO).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-platform"
    return folder / f"{what}-{hashlib.sha256(who).hexdigest()[:16]}.json"


def _kept(what: str) -> list[str] | None:
    try:
        file = _file_of(what)
        if not 0 <= time.time() - file.stat().st_mtime < _KEPT_S:
            return None
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RuntimeError):  # no file, half a file, no home
        return None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else None


def _keep(what: str, names: list[str]) -> None:
    from gpu_platform.private_files import write_file

    with suppress(OSError, RuntimeError):
        file = _file_of(what)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(file, json.dumps(names).encode())
