"""Ranks of a gang that need the same: :class:`RankGroup`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.texts import check_command, check_env, check_name


class RankGroup(BaseModel):
    """Ranks of a gang that need something else than the others, e.g. one evaluator beside eight trainers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[
        str,
        Field(
            description="Allowed characters as in a job's name; the ranks see it as GPU_PLATFORM_GROUP",
            examples=["trainer"],
        ),
    ]
    gpus: ResourceRequest = ResourceRequest()
    command: Annotated[list[str] | None, Field(min_length=1, max_length=4096, description="Default: the job's")] = None
    env: Annotated[dict[str, str], Field(max_length=4096, description="Added to the job's")] = {}
    rank_per: RankPer = RankPer.HOST

    @model_validator(mode="after")
    def _gets_whole_gpus(self) -> Self:
        if self.gpus.share is not None:
            raise ValueError(f"group {self.name!r} asks for shares: groups get whole GPUs")
        return self

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        return check_name(value)

    @field_validator("command")
    @classmethod
    def _can_be_executed(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else check_command(value)

    @field_validator("env")
    @classmethod
    def _can_be_an_environment(cls, value: dict[str, str]) -> dict[str, str]:
        return check_env(value)
