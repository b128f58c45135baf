"""Which module has which command. A command's module is imported when the command is needed (ADR 93)."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from typing import Any

import typer

from service.cli.plain_values import read_plainly

COMMANDS: dict[str, str] = {
    "up": "service.cli.up",
    "doctor": "service.cli.doctor",
    "submit": "service.cli.submitting.submit",
    "run": "service.cli.submitting.run",
    "jobs": "service.cli.jobs.jobs",
    "pipelines": "service.cli.jobs.pipelines",
    "schedules": "service.cli.jobs.schedules",
    "reservations": "service.cli.cluster.reservations",
    "status": "service.cli.cluster.status",
    "health": "service.cli.cluster.status",
    "watch": "service.cli.cluster.status",
    "queue": "service.cli.cluster.queue",
    "snapshot": "service.cli.cluster.queue",
    "quotas": "service.cli.cluster.quotas",
    "usage": "service.cli.cluster.usage",
    "metrics": "service.cli.cluster.metrics",
    "report": "service.cli.cluster.report",
    "drain": "service.cli.cluster.hosts",
    "online": "service.cli.cluster.hosts",
    "offline": "service.cli.cluster.hosts",
    "hosts": "service.cli.cluster.hosts",
    "ca": "service.cli.cluster.identity",
    "remediation": "service.cli.cluster.remediation",
    "service-case": "service.cli.cluster.remediation",
    "audit": "service.cli.cluster.audit",
    "alerts": "service.cli.cluster.alerts",
    "notifications": "service.cli.jobs.notifications",
    "completion": "service.cli.completion",
    "login": "service.cli.access.login",
    "logout": "service.cli.access.login",
    "tokens": "service.cli.access.tokens",
    "whoami": "service.cli.access.tokens",
    "secrets": "service.cli.access.secrets",
    "keys": "service.cli.access.keys",
    "simulate": "service.cli.simulate",
    "machines": "service.cli.simulating.machines",
    "inject": "service.cli.cluster.inject",
    "fleet": "service.cli.cluster.fleet",
    "compat": "service.cli.slurm.compat",
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
