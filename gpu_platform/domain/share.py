"""Parts of GPUs: what a job may ask for instead of whole ones, and what it got."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ShareMode(StrEnum):
    MIG = "mig"
    """A hardware partition with memory and fault isolation; any tenants side by side."""
    MPS = "mps"
    """CUDA's Multi-Process Service: limits on SMs and pinned memory, within one namespace."""
    TIME_SLICE = "time_slice"
    """Turns on the whole GPU, within one namespace: no limit on SMs. The last resort."""


class Share(BaseModel):
    """A part of each GPU of the gang. Either a MIG profile, or SM percent and memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mig_profile: Annotated[
        str | None, Field(pattern=r"^\dg\.\d{1,3}gb(\+me)?$", description="e.g. 1g.10gb", examples=["1g.10gb"])
    ] = None
    percent: Annotated[int | None, Field(ge=1, le=99, description="Of the GPU's SMs")] = None
    memory_mib: Annotated[int | None, Field(ge=1, description="Of the GPU's memory, MiB; never oversubscribed")] = None
    mode: Annotated[
        ShareMode | None, Field(description="Default: mig with a profile, else mps where the host can, else time_slice")
    ] = None

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if self.mig_profile is not None:
            if self.percent is not None or self.memory_mib is not None or self.mode not in (None, ShareMode.MIG):
                raise ValueError(f"the profile {self.mig_profile} says it all: leave percent, memory_mib and mode out")
        elif self.mode is ShareMode.MIG:
            raise ValueError("mode mig needs a mig_profile, e.g. 1g.10gb")
        elif self.percent is None or self.memory_mib is None:
            raise ValueError("a share of a GPU needs percent and memory_mib, or a mig_profile")
        return self


class ShareGrant(BaseModel):
    """What a gang got of one GPU."""

    model_config = ConfigDict(frozen=True)

    mode: ShareMode
    percent: int
    """Of the SMs; with MIG what the profile has, rounded down."""
    memory_mib: int
    mig_profile: str | None = None
    mig_start: int | None = None
    """First memory slice."""
    mig_size: int | None = None
    """Memory slices."""

    @property
    def mig_mask(self) -> int:
        """Bit i: memory slice i is taken. 0 without MIG."""
        if self.mig_start is None or self.mig_size is None:
            return 0
        return ((1 << self.mig_size) - 1) << self.mig_start
