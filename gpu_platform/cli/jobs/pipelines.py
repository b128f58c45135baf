"""``gpu-platform pipelines …``: jobs that depend on each other, from one file."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_platform.cli import completion, session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.client import pipeline_calls

if TYPE_CHECKING:
    from gpu_platform.domain.pipelines.pipeline import Pipeline

app = typer.Typer(help="Run jobs that depend on each other, from one file.", no_args_is_help=True)

PipelineId = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE", help="Pipeline id.", show_default=False, autocompletion=completion.pipeline_names
    ),
]


def register(parent: typer.Typer) -> None:
    """Add the commands of ``pipelines``."""
    parent.add_typer(app, name="pipelines")


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline in YAML.", show_default=False)],
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="A parameter, in YAML; may be repeated."),
    ] = None,
    workdir: Annotated[
        str | None, typer.Option(help="Working directory of steps that name none; default: the current directory.")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Run also what could be taken from an earlier run.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the file, and print its graph.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; returns 1 unless COMPLETED.")] = False,
    json: session.Json = False,
) -> None:
    """Submit a pipeline.

    For example: gpu-platform pipelines submit pipeline.yaml -p points=500 --wait
    """
    from gpu_platform.domain.pipelines.pipeline import PipelineRequest

    request = session.validated(
        PipelineRequest,
        {
            "file": _text(file),
            "parameters": _parameters(parameter or []),
            "workdir": os.path.abspath(workdir or "."),
            "cache": not no_cache,
            "dry_run": dry_run,
        },
    )
    with session.service() as client:
        made = client.pipelines.submit(request)
    if dry_run:
        _show(made, json)
        return
    if not json:
        session.write(made.id)
        session.say(f"submitted; see it with: gpu-platform pipelines describe {made.id}")
    if wait:
        with session.service(session.FOLLOW_PATIENCE_S) as client:
            made = client.pipelines.wait(made.id)
        session.say(f"{made.id} {made.state}")
        _say_what_failed(made)
    if json:
        session.print_json(made)
    if wait and made.state != "COMPLETED":
        raise typer.Exit(session.FAILED)


def _say_what_failed(made: Pipeline) -> None:
    """The steps that failed themselves, each with the first of its jobs that did."""
    for step in made.steps:
        if step.state != "FAILED":
            continue
        failed = next((one.job_id for one in step.jobs if one.state == "FAILED" and one.job_id is not None), None)
        session.say(f"step {step.name} {step.state}" + (f": {step.message}" if step.message else ""))
        if failed is not None:
            session.say(f"see what it wrote: gpu-platform jobs logs {failed}")


@app.command("list")
@grouped_options
def list_pipelines(
    namespace: session.OnlyNamespace = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest first.")] = 50,
    *,
    shown: ListingOptions,
) -> None:
    """List pipelines, newest first."""
    listing = shown.listing(list_columns.PIPELINES)
    with session.service() as client:
        pages = client.json_pages(lambda cursor: pipeline_calls.pipelines(namespace, cursor))
        listing.show(islice(pages, limit))


@app.command()
def describe(pipeline: PipelineId, json: session.Json = False) -> None:
    """The steps of a pipeline: states, jobs, and why a step was skipped or failed."""
    with session.service() as client:
        found = client.pipelines.get(pipeline)
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_pipelines

    session.show(show_pipelines.details(found))


@app.command()
def graph(
    pipeline: PipelineId,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid diagram, for Markdown.")] = False,
) -> None:
    """Print what runs after what, with states."""
    from gpu_platform.cli.show import show_pipelines

    with session.service() as client:
        found = client.pipelines.get(pipeline)
    session.write(show_pipelines.mermaid(found) if mermaid else show_pipelines.graph(found))


@app.command()
def cancel(pipeline: PipelineId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Cancel the jobs of a pipeline, and submit no more."""
    with session.service() as client:
        _done(client.pipelines.cancel(pipeline, reason), "is cancelled", json)


@app.command()
def retry(
    pipeline: PipelineId,
    from_step: Annotated[
        str | None, typer.Option("--from", metavar="STEP", help="Also run this step and all after it again.")
    ] = None,
    json: session.Json = False,
) -> None:
    """Run again what was not COMPLETED. What was stays."""
    with session.service() as client:
        _done(client.pipelines.retry(pipeline, from_step), "runs again", json)


def _done(found: Pipeline, what: str, json: bool) -> None:
    if json:
        session.print_json(found)
    else:
        session.say(f"{found.id} {what}")


def _show(found: Pipeline, json: bool) -> None:
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_pipelines

    session.write(show_pipelines.graph(found))


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not UTF-8 text") from None


def _parameters(items: list[str]) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"-p {item!r}: write NAME=VALUE")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            found[name] = value
    return found
