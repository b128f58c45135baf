"""The settings of a host about the environments of jobs. A part of ``NodeSettings``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_REGISTRY = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9._-]+)*$"


class EnvironmentSettings(BaseModel):
    """Directories that jobs write, modules, and containers."""

    model_config = ConfigDict(extra="forbid")

    artifact_root: Path | None = None
    """Directories that steps of pipelines hand to each other, on a file system that all hosts share; None:
    ``<state_dir>/artifacts``. The platform removes nothing there."""
    outputs_root: Path | None = None
    """Directories of outputs that jobs keep (``submit --outputs``), best on a file system that all hosts share; None:
    ``<state_dir>/outputs``. The platform removes nothing there."""
    module_init: Path | None = None
    """The file that defines the command ``module`` for bash, e.g. ``/usr/share/lmod/lmod/init/bash``; None: where Lmod
    and Environment Modules install it."""
    image_dir: Path | None = None
    """Where this host keeps the files of container images; None: ``<state_dir>/images``. Local, and large enough for
    all images that jobs use; the platform removes those that nobody used for ``image_keep_days``."""
    image_keep_days: Annotated[float, Field(gt=0)] = 14.0
    """Files of images that no job used for so long are removed."""
    image_registries: list[Annotated[str, Field(pattern=_REGISTRY)]] = [
        *("docker.io", "ghcr.io", "quay.io", "nvcr.io", "gcr.io", "public.ecr.aws", "registry.k8s.io"),
        *("mcr.microsoft.com", "registry.gitlab.com", "registry.access.redhat.com"),
    ]
    """Registries from which jobs get container images, ``HOST[:PORT][/REPOSITORY]``; the default are the well-known
    public ones. A pull reaches what ``network.allow`` has, whatever a registry or DNS answers. An address of this host
    is reached only if an entry here has that address. Images that the host has already need no entry."""
    image_max_gib: Annotated[float, Field(gt=0)] = 64.0
    """The largest container image, unpacked. A larger one is not kept, and its job fails."""
    image_max_files: Annotated[int, Field(gt=0)] = 2_000_000
    """The most files and directories of a container image. Each takes an inode of the disk."""
    image_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Getting an image from its registry and unpacking it that takes longer has failed."""
    container_mounts: list[Path] = []
    """Directories of the host that every container shows read-only, e.g. ``/opt/nvidia``, besides the working
    directory, checkpoints, outputs and code of the job."""
