"""The section ``cluster`` of the settings: what every process of one cluster says alike."""

from __future__ import annotations

import re

from pydantic import field_validator

from gpu_platform.settings.section import Section

MAX_NAME = 40
"""As Slurm's ``ClusterName``."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)


class ClusterSettings(Section):
    """The cluster as a whole."""

    name: str = "gpu-platform"
    """The cluster's name, the same on all machines: in ``gpu-platform status``, logs, metrics and the environment of
    ranks (``GPU_PLATFORM_CLUSTER_NAME``). Lower-case letters, digits and hyphens, at most 40; it begins and ends with a
    letter or digit. A host that has another name than the service says so in its log."""

    @field_validator("name")
    @classmethod
    def _is_a_label(cls, value: str) -> str:
        if len(value) > MAX_NAME or not _NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} is no name of a cluster: use lower-case letters, digits and hyphens, at most {MAX_NAME}, "
                "with a letter or digit at both ends, e.g. research-2"
            )
        return value
