"""The environment that a job's program runs in: its code, virtual environment, modules, container and outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.jobs.upload_limits import UPLOAD_PATTERN
from gpu_platform.domain.texts import check_name, check_text

MAX_MODULES = 32
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*(/[A-Za-z0-9_][A-Za-z0-9_.+@-]*)*")
_IMAGE = re.compile(r"docker://[a-zA-Z0-9][a-zA-Z0-9._:@/-]*")
_SQUASHFS = (".sqsh", ".squashfs", ".sqfs", ".sif")
DOCKER_LABEL = "container-docker"
SQUASHFS_LABEL = "container-squashfs"
DOCKER_TOOLS = ("podman",)
"""Programs with which a host gets the files of a ``docker://`` image: the values of :data:`DOCKER_LABEL`."""
SQUASHFS_TOOLS = ("unsquashfs",)
"""Programs with which a host unpacks an image file: the values of :data:`SQUASHFS_LABEL`."""


class ContainerKind(StrEnum):
    """What a container is made of."""

    DIRECTORY = "directory"
    """A directory of the hosts that holds a root file system."""
    SQUASHFS = "squashfs"
    """A file of the hosts: SquashFS, alone or inside a SIF."""
    DOCKER = "docker"
    """An image of a registry, or one that the hosts have already."""


class JobEnvironment(BaseModel):
    """What the program of a job finds where it runs. Everything may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    upload: Annotated[
        str | None,
        Field(
            pattern=UPLOAD_PATTERN,
            description="The SHA-256 of uploaded code of the job's namespace. It is unpacked on each host for each "
            "attempt, and is the working directory",
        ),
    ] = None
    venv: Annotated[
        str | None,
        Field(max_length=4096, description="A Python virtual environment on the hosts, an absolute path"),
    ] = None
    modules: Annotated[
        tuple[str, ...],
        Field(
            max_length=MAX_MODULES,
            description="Modules of Lmod or Environment Modules, loaded in this order before the program starts",
            examples=[["cuda/12.4", "openmpi"]],
        ),
    ] = ()
    container: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="The root file system of the program: docker://IMAGE, or on the hosts an image file (.sqsh, "
            ".sif) or a directory, an absolute path",
            examples=["docker://docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime", "/srv/rootfs"],
        ),
    ] = None
    outputs: Annotated[
        str | None,
        Field(
            description="Keep what the job writes into GPU_PLATFORM_OUTPUTS, in a directory of this name below the "
            "outputs root of the hosts (node.outputs_root), in the job's own directory",
            examples=["results"],
        ),
    ] = None

    @field_validator("venv")
    @classmethod
    def _is_absolute(cls, value: str | None) -> str | None:
        return None if value is None else _absolute(value, "venv")

    @field_validator("modules")
    @classmethod
    def _are_modules(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if len(name) > 255 or not _MODULE.fullmatch(name):
                raise ValueError(
                    f"{name[:80]!r} is not the name of a module: write NAME or NAME/VERSION, e.g. cuda/12.4"
                )
        return value

    @field_validator("container")
    @classmethod
    def _names_an_image(cls, value: str | None) -> str | None:
        if value is None or value.startswith("/"):
            return None if value is None else _absolute(value, "container")
        if not _IMAGE.fullmatch(value):
            raise ValueError(
                f"{value[:80]!r} names no container: write docker://IMAGE, or the absolute path of an image file "
                f"({', '.join(_SQUASHFS)}) or of a directory on the hosts"
            )
        return value

    @field_validator("outputs")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value)

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if self.container is not None and self.modules:
            raise ValueError(
                "modules are files of the hosts, which a container does not show: leave modules or container out"
            )
        return self

    @property
    def container_kind(self) -> ContainerKind | None:
        """What the container is made of. None: there is none."""
        if self.container is None:
            return None
        if not self.container.startswith("/"):
            return ContainerKind.DOCKER
        return ContainerKind.SQUASHFS if self.container.lower().endswith(_SQUASHFS) else ContainerKind.DIRECTORY

    @property
    def constraints(self) -> tuple[str, ...]:
        """What labels of hosts must say, so that they can run it. Hosts that can, set these labels themselves."""
        kind = self.container_kind
        if kind is ContainerKind.DOCKER:
            return (f"{DOCKER_LABEL}={'|'.join(DOCKER_TOOLS)}",)
        return (f"{SQUASHFS_LABEL}={'|'.join(SQUASHFS_TOOLS)}",) if kind is ContainerKind.SQUASHFS else ()


def containers_of(labels: Mapping[str, str]) -> list[str]:
    """The kinds of containers that a host with these labels runs, if it isolates ranks."""
    kinds = {ContainerKind.DOCKER: DOCKER_LABEL, ContainerKind.SQUASHFS: SQUASHFS_LABEL}
    return [ContainerKind.DIRECTORY.value, *(kind.value for kind, label in kinds.items() if label in labels)]


def outputs_path(job_id: str, name: str) -> str:
    """Where the outputs of a job are, below the outputs root."""
    return f"{job_id}/{name}"


def _absolute(value: str, what: str) -> str:
    check_text(value, what)
    if not value.startswith("/"):
        raise ValueError(f"{what} {value!r} is not an absolute path: name a place that all hosts have")
    return value
