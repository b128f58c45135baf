"""The options of ``gpu-platform submit`` that say what the program finds where it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gpu_platform.cli.option_groups import Fields, given

if TYPE_CHECKING:
    from gpu_platform.client import Client

_NOTHING = "0" * 64
"""The hash of no archive. The answer about it says what the limit is."""
_DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True)
class EnvironmentOptions:
    """The code, the virtual environment, modules, a container, and outputs that are kept."""

    HEADINGS: ClassVar = {"upload": "Environment"}

    upload: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Send this directory (without what .gitignore and .gpuignore name); it is the working directory.",
        ),
    ] = None
    venv: Annotated[
        str | None, typer.Option(metavar="PATH", help="A Python virtual environment on the hosts, as if activated.")
    ] = None
    module: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[/VERSION]", help="Load a module (Lmod, Environment Modules); may be repeated."),
    ] = None
    container: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE|PATH",
            help="Run in a container: docker://IMAGE, or on the hosts a .sqsh or .sif file or a directory.",
        ),
    ] = None
    outputs: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Keep what the job writes into $GPU_PLATFORM_OUTPUTS, in a directory NAME."),
    ] = None

    def fields(self) -> Fields:
        """Fields of a job, but for the upload: see :func:`send_code`."""
        container = self.container
        if container is not None and "://" not in container:
            container = os.path.abspath(container)
        environment = given(
            venv=os.path.abspath(self.venv) if self.venv else None,
            modules=self.module or None,
            container=container,
            outputs=self.outputs,
        )
        return given(environment=environment or None)

    def workdir(self, workdir: str | None) -> Fields:
        """The working directory of a job with code: none besides that. Raises :class:`typer.BadParameter` if another
        option names one."""
        if self.upload is None:
            return {}
        if workdir is not None:
            raise typer.BadParameter(
                f"--upload {self.upload} is the working directory, and --workdir {workdir} another: leave one out"
            )
        return {"workdir": None}


def send_code(client: Client, directory: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Send the directory, unless the job's namespace has it. Returns the fields of the job with its hash.

    Raises :class:`InvalidRequest` if it is too large, with the largest files.
    """
    from gpu_platform.cli import session
    from gpu_platform.client.archive import pack

    namespace = str(fields.get("namespace") or _own_namespace(client))
    limit = client.uploads.find(namespace, _NOTHING).limit_bytes
    with pack(directory, limit) as archive:
        before = client.uploads.find(namespace, archive.sha256)
        client.uploads.send(namespace, archive)
        how = "is there already" if before.complete else f"sent, {archive.size_bytes / 1e6:,.1f} MB"
        session.say(f"code of {directory}: {archive.files:,} files, {archive.sha256[:12]}, {how}")
        environment = {**(fields.get("environment") or {}), "upload": archive.sha256}
    return {**fields, "environment": environment, "workdir": None}


def _own_namespace(client: Client) -> str:
    """The namespace that the service takes for a job that names none."""
    roles = client.who_am_i().roles
    if _DEFAULT_NAMESPACE in roles or "*" in roles or len(roles) != 1:
        return _DEFAULT_NAMESPACE
    return next(iter(roles))
