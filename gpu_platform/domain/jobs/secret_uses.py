"""Which secrets a job uses, and what its host gets for it at the launch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.texts import check_name

MAX_SECRETS = 32
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_OF_THE_PLATFORM = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    | {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
)
_PREFIX = "GPU_PLATFORM_"


def is_of_the_platform(variable: str) -> bool:
    """True for a variable that the platform sets for every rank."""
    return variable in _OF_THE_PLATFORM or variable.startswith(_PREFIX)


class SecretUse(BaseModel):
    """One secret of the job's namespace, and how the ranks get it: as a variable or as a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(description="A secret of the job's namespace", examples=["wandb-key"])]
    env: Annotated[str | None, Field(description="The variable that has the value", examples=["WANDB_API_KEY"])] = None
    file: Annotated[
        str | None, Field(description="Name of the file with the value, in the directory GPU_PLATFORM_SECRETS_DIR")
    ] = None

    @field_validator("name", "file")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value)

    @field_validator("env")
    @classmethod
    def _can_be_set(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not _VARIABLE.fullmatch(value):
            raise ValueError(
                f"{value[:80]!r} is not the name of a variable: name one, e.g. --secret {value[:40]}=API_KEY"
            )
        if is_of_the_platform(value):
            raise ValueError(f"the platform sets {value} itself: choose another variable for the secret")
        return value

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError(f"say how the ranks get the secret {self.name}: either env or file")
        return self


def check_secrets(uses: Sequence[SecretUse], variables: set[str]) -> None:
    """Raise ``ValueError`` if two uses, or a use and one of the job's ``variables``, have one name."""
    for kind in ("env", "file"):
        names = [name for use in uses if (name := getattr(use, kind)) is not None]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two secrets have the {'variable' if kind == 'env' else 'file'} {twice[0]}")
    if both := sorted({use.env for use in uses if use.env} & variables):
        raise ValueError(f"{both[0]} is in env and is a secret: leave it out of env")


class LaunchSecrets(BaseModel):
    """What a host gets for the ranks of one attempt. It stays in memory."""

    model_config = ConfigDict(hide_input_in_errors=True)

    environ: Annotated[dict[str, str], Field(repr=False)] = {}
    files: Annotated[dict[str, str], Field(repr=False, description="Name -> content, in base64")] = {}
    token: Annotated[str | None, Field(repr=False, description="The job token, if the job asked for one")] = None
