"""Shares of GPUs: what a job may ask for instead of whole GPUs, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ShareMode(StrEnum):
    """How several jobs share one GPU."""

    MIG = "mig"
    """A hardware partition with memory and fault isolation; any tenants side by side."""
    MPS = "mps"
    """CUDA's Multi-Process Service: limits on SMs and pinned memory, within one namespace."""
    TIME_SLICE = "time_slice"
    """Processes take turns on the whole GPU, within one namespace; SMs are not limited. The last resort."""


class Share(BaseModel):
    """A share of each GPU of the gang: either a MIG profile, or percent of the SMs and memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mig_profile: Annotated[
        str | None, Field(pattern=r"^\dg\.\d{1,3}gb(\+me)?$", description="e.g. 1g.10gb", examples=["1g.10gb"])
    ] = None
    percent: Annotated[int | None, Field(ge=1, le=99, description="Percent of the GPU's SMs")] = None
    memory_mib: Annotated[
        int | None, Field(ge=1, description="Memory of the GPU, MiB; all shares together never exceed the GPU's")
    ] = None
    mode: Annotated[
        ShareMode | None,
        Field(description="Default: mig with a profile, else mps where the host has it, else time_slice"),
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
    """The share of one GPU that a gang got."""

    model_config = ConfigDict(frozen=True)

    mode: ShareMode
    percent: int
    """Percent of the SMs. With MIG: those of the profile, rounded down."""
    memory_mib: int
    mig_profile: str | None = None
    mig_start: int | None = None
    """The first memory slice of the MIG instance."""
    mig_size: int | None = None
    """The number of memory slices of the MIG instance."""

    def __str__(self) -> str:
        if self.mig_profile is not None:
            return f"MIG {self.mig_profile}"
        how = "MPS" if self.mode is ShareMode.MPS else "time slice"
        return f"{how} {self.percent} %, {self.memory_mib / 1024:.0f} GiB"

    @property
    def mig_mask(self) -> int:
        """Bit i: memory slice i is taken. 0 without MIG."""
        if self.mig_start is None or self.mig_size is None:
            return 0
        return ((1 << self.mig_size) - 1) << self.mig_start

    @property
    def mig_compute_slices(self) -> int:
        """The compute slices in the profile's name: ``3g`` has three. 0 without MIG."""
        return 0 if self.mig_profile is None else int(self.mig_profile[0])

    @property
    def mig_media(self) -> int:
        """1 for a ``+me`` instance, of which a GPU has at most one."""
        return int(self.mig_profile is not None and self.mig_profile.endswith("+me"))


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The sum of the shares of one GPU that jobs hold. All shares of a GPU have one mode."""

    mode: ShareMode
    tenant: str
    """The namespace whose jobs share it; empty with MIG, where tenants do not matter."""
    percent: int = 0
    memory_mib: int = 0
    mig_mask: int = 0
    """Bit i: memory slice i is taken."""
    mig_compute_slices: int = 0
    mig_media: int = 0

    def plus(self, grant: ShareGrant) -> GpuUse:
        """The use after ``grant`` was added."""
        return self._changed(grant, 1, self.mig_mask | grant.mig_mask)

    def minus(self, grant: ShareGrant) -> GpuUse | None:
        """The use after ``grant`` was given back. None: no share is left, so the GPU may be given as a whole, or in
        shares of another mode."""
        left = self._changed(grant, -1, self.mig_mask & ~grant.mig_mask)
        return left if left.percent > 0 else None

    def _changed(self, grant: ShareGrant, sign: int, mig_mask: int) -> GpuUse:
        return replace(
            self,
            percent=self.percent + sign * grant.percent,
            memory_mib=self.memory_mib + sign * grant.memory_mib,
            mig_mask=mig_mask,
            mig_compute_slices=self.mig_compute_slices + sign * grant.mig_compute_slices,
            mig_media=self.mig_media + sign * grant.mig_media,
        )


def first_use(grant: ShareGrant, namespace: str) -> GpuUse:
    """The use of a GPU whose only share is ``grant``."""
    return GpuUse(grant.mode, "" if grant.mode is ShareMode.MIG else namespace).plus(grant)
