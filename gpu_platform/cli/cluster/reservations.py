"""``gpu-platform reservations …``: keep hosts or GPUs for somebody for a time, or for maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.option_groups import given, grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.client import reservation_calls

app = typer.Typer(help="Keep hosts or GPUs for somebody's jobs for a time, or for maintenance.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the reservation.", show_default=False)]


def register(parent: typer.Typer) -> None:
    """Add the commands of ``reservations``."""
    parent.add_typer(app, name="reservations")


@dataclass(frozen=True)
class TimeOptions:
    """When it begins and ends, and how often."""

    start: Annotated[
        datetime | None,
        typer.Option(parser=parsing.moment, metavar="TIME", help="2026-12-01T14:00, 14:00, +2h; default: now."),
    ] = None
    end: Annotated[datetime | None, typer.Option(parser=parsing.moment, metavar="TIME", help="As --start.")] = None
    duration: Annotated[
        int | None, typer.Option(parser=parsing.limit_s, metavar="TIME", help="Instead of --end: 2h, 01:30:00.")
    ] = None
    repeat: Annotated[
        Literal["daily", "weekly", "never"] | None, typer.Option(help="Again after 24 hours, or after 7 days.")
    ] = None
    until: Annotated[
        datetime | None,
        typer.Option(parser=parsing.moment, metavar="TIME", help="With --repeat: it does not begin then or later."),
    ] = None

    def fields(self) -> dict[str, Any]:
        """Fields of a window."""
        typed = given(start_at=self.start, end_at=self.end, duration_s=self.duration, until_at=self.until)
        if self.repeat is not None:
            typed["repeat"] = None if self.repeat == "never" else self.repeat
        return typed


@dataclass(frozen=True)
class WhoOptions:
    """Whose jobs may use it."""

    namespace: Annotated[
        list[str] | None, typer.Option(metavar="NAMESPACE[,…]", help="For jobs of these namespaces.")
    ] = None
    user: Annotated[
        list[str] | None,
        typer.Option(metavar="USER[,…]", help="For jobs of these users; with --namespace, only in these namespaces."),
    ] = None
    reason: Annotated[str | None, typer.Option(help="For people.")] = None
    stop_running: Annotated[
        bool,
        typer.Option(
            "--stop-running",
            help="Jobs that may still run when it begins are stopped then, and queue again. Else it is refused.",
        ),
    ] = False
    json: session.Json = False

    def fields(self) -> dict[str, Any]:
        """Fields of a window."""
        typed = given(reason=self.reason, stop_running=self.stop_running or None)
        for name, items in (("namespaces", self.namespace), ("users", self.user)):
            if items is not None:
                typed[name] = [one for item in items for one in parsing.names(item)]
        return typed


@dataclass(frozen=True)
class WhatOptions:
    """What it keeps."""

    maintenance: Annotated[
        bool, typer.Option("--maintenance", help="For maintenance: no jobs run there, and the hosts are drained.")
    ] = False
    hosts: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="Whole hosts: a number, or names: dgx-1, dgx-[1-4], 'dgx-*'."),
    ] = None
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="Instead of --hosts: so many GPUs.")] = None
    gpu_model: Annotated[
        str | None, typer.Option("--gpu-model", metavar="MODEL", help="With a number: of this model, e.g. H100.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """Fields of a window."""
        typed = given(maintenance=self.maintenance or None, gpu_count=self.gpus, gpu_model=self.gpu_model)
        if self.hosts is not None and self.hosts.strip().isdigit():
            typed["host_count"] = int(self.hosts)
        elif self.hosts is not None:
            typed["hosts"] = parsing.host_patterns(self.hosts)
        return typed


@app.command()
@grouped_options
def create(name: Name, *, what: WhatOptions, when: TimeOptions, who: WhoOptions) -> None:
    """Keep hosts or GPUs from --start on.

    For example: gpu-platform reservations create course --gpus 8 --start 14:00 --duration 2h --namespace teaching
    """
    from gpu_platform.domain.windows import WindowRequest

    request = session.validated(WindowRequest, {"name": name, **what.fields(), **when.fields(), **who.fields()})
    with session.service() as client:
        made = client.reservations.create(request)
        if who.json:
            session.print_json(made)
            return
        from gpu_platform.cli.show import show_reservations

        session.show(show_reservations.details(made))
    if not made.maintenance:
        session.say(f"jobs run in it with: gpu-platform submit --reservation {made.name} --time … ")


@app.command("list")
@grouped_options
def list_reservations(*, shown: ListingOptions) -> None:
    """List maintenance windows, and the reservations that concern you."""
    listing = shown.listing(list_columns.RESERVATIONS)
    with session.service() as client:
        listing.show(client.json_pages(reservation_calls.reservations))


@app.command()
def describe(name: Name, json: session.Json = False) -> None:
    """When it is open, what it keeps, whose jobs may use it, and which jobs do."""
    with session.service() as client:
        found = client.reservations.get(name)
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_reservations

    session.show(show_reservations.details(found))


@app.command()
@grouped_options
def update(name: Name, *, when: TimeOptions, who: WhoOptions) -> None:
    """Move it, make it longer or shorter, or change whose jobs may use it."""
    from gpu_platform.domain.windows import WindowChanges

    changes = session.validated(WindowChanges, {**when.fields(), **who.fields()})
    with session.service() as client:
        changed = client.reservations.update(name, changes)
    if who.json:
        session.print_json(changed)
        return
    from gpu_platform.cli.show import show_reservations

    session.show(show_reservations.details(changed))


@app.command()
def delete(name: Name) -> None:
    """Forget it. What it kept is free at once; hosts that it drained come back; jobs there go on."""
    with session.service() as client:
        client.reservations.delete(name)
    session.say(f"{name} is deleted")
