"""Which module has which command. A command's module is imported when the command is needed (ADR 93)."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from typing import Any

import typer

from gpu_platform.cli.plain_values import read_plainly

COMMANDS: dict[str, str] = {
    "up": "gpu_platform.cli.local.up",
    "doctor": "gpu_platform.cli.local.doctor",
    "submit": "gpu_platform.cli.submitting.submit",
    "run": "gpu_platform.cli.submitting.run",
    "jobs": "gpu_platform.cli.jobs.jobs",
    "pipelines": "gpu_platform.cli.jobs.pipelines",
    "schedules": "gpu_platform.cli.jobs.schedules",
    "reservations": "gpu_platform.cli.cluster.reservations",
    "status": "gpu_platform.cli.cluster.status",
    "health": "gpu_platform.cli.cluster.status",
    "watch": "gpu_platform.cli.cluster.status",
    "queue": "gpu_platform.cli.cluster.queue",
    "snapshot": "gpu_platform.cli.cluster.queue",
    "quotas": "gpu_platform.cli.cluster.quotas",
    "usage": "gpu_platform.cli.cluster.usage",
    "metrics": "gpu_platform.cli.cluster.metrics",
    "report": "gpu_platform.cli.cluster.report",
    "drain": "gpu_platform.cli.cluster.hosts",
    "online": "gpu_platform.cli.cluster.hosts",
    "offline": "gpu_platform.cli.cluster.hosts",
    "hosts": "gpu_platform.cli.cluster.hosts",
    "ca": "gpu_platform.cli.local.ca",
    "remediation": "gpu_platform.cli.cluster.remediation",
    "service-case": "gpu_platform.cli.cluster.remediation",
    "audit": "gpu_platform.cli.cluster.audit",
    "alerts": "gpu_platform.cli.cluster.alerts",
    "notifications": "gpu_platform.cli.jobs.notifications",
    "completion": "gpu_platform.cli.completion",
    "login": "gpu_platform.cli.access.login",
    "logout": "gpu_platform.cli.access.login",
    "tokens": "gpu_platform.cli.access.tokens",
    "whoami": "gpu_platform.cli.access.tokens",
    "secrets": "gpu_platform.cli.access.secrets",
    "keys": "gpu_platform.cli.local.keys",
    "simulate": "gpu_platform.cli.local.simulate",
    "machines": "gpu_platform.cli.local.simulating.machines",
    "inject": "gpu_platform.cli.local.inject",
    "fleet": "gpu_platform.cli.local.fleet",
    "compat": "gpu_platform.cli.slurm.compat",
}
"""Name -> the module whose ``register`` adds it. Help lists the commands in this order."""


class LazyCommands(MutableMapping[str, Any]):
    """The commands by name. Looking whether there is a name imports nothing; taking its command does."""

    def __getitem__(self, name: str) -> Any:
        return _registered(COMMANDS[name])[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError("commands are added in COMMANDS")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are removed from COMMANDS")


@cache
def _registered(module: str) -> MutableMapping[str, Any]:
    """The commands that a module adds."""
    parent = typer.Typer()
    import_module(module).register(parent)
    return read_plainly(typer.main.get_group(parent)).commands
