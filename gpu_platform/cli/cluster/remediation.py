"""``gpu-platform remediation show|approve|veto`` and ``service-case``: what is done about a broken GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import session

if TYPE_CHECKING:
    from gpu_platform.domain.hosts.remediation import RemediationStatus

GpuId = Annotated[str, typer.Argument(metavar="GPU", help="host:index, or uuid.", show_default=False)]

remediation = typer.Typer(help="What is done about a broken GPU.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands for remediation and service cases."""
    for command in (show, approve, veto):
        remediation.command()(command)
    app.add_typer(remediation, name="remediation")
    app.command("service-case")(service_case)


def show(gpu: GpuId, json: session.Json = False) -> None:
    """Show how far the remediation of a GPU is, and what happened so far."""
    with session.service() as client:
        found = client.remediation(gpu)
    if json:
        session.print_json(found)
        return
    session.say(_in_words(gpu, found))
    for note in found.notes:
        session.write(note)


def approve(gpu: GpuId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Approve the step that waits for an operator."""
    with session.service() as client:
        found = client.order_remediation(gpu, "approve", reason)
    session.print_json(found) if json else session.say(f"{gpu}: {found.step or 'the step'} is approved")


def veto(gpu: GpuId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Skip the step that waits for an operator. The next one follows."""
    with session.service() as client:
        found = client.order_remediation(gpu, "veto", reason)
    session.print_json(found) if json else session.say(f"{gpu}: {found.step or 'the step'} is left out")


def service_case(
    gpu: GpuId,
    output: session.Output = None,
) -> None:
    """Write a GPU's record for its vendor as JSON: identity, driver, faults, resets, what was tried, who had it."""
    with session.service() as client:
        found = client.service_case(gpu)
    if output is None:
        session.print_json(found)
        return
    summary = f"{len(found.faults)} faults and {found.resets} resets of {gpu}"
    session.write_file(output, found.model_dump_json(indent=2) + "\n", summary)


def _in_words(gpu: str, found: RemediationStatus) -> str:
    if found.waits_for_approval:
        return f"{gpu}: {found.step} of host {found.host} waits for `gpu-platform remediation approve {gpu}`, or veto"
    return f"{gpu}: {found.step} of host {found.host}" if found.step else f"{gpu} is being reset"
