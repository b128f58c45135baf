"""MIG: which instances a GPU can have at the same time, and where the next one should start.

Rules and their sources are in ``mig.yaml``. What a GPU has is a *state*, an int. Bits 0 to 7: the memory slices that
are taken. Bits 8 to 10: how many compute slices are taken. Bit 11: whether a ``+me`` instance is there. All states of
a model are computed once, so that a placement is a look-up.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from importlib import resources
from typing import Self

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from gpu_platform.domain.hosts.share import ShareGrant, ShareMode

STATES = 1 << 12
_COMPUTE_SHIFT, _ME = 8, 1 << 11
NOWHERE = -1


class MigProfile(BaseModel):
    """One MIG profile of a GPU model, e.g. ``1g.10gb``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    profile_id: int
    """The number of NVML's GPU instance profile."""
    compute_slices: int
    memory_slices: int
    max_instances: int
    """How many instances fit on a GPU that has no others."""
    memory_gib: float | None
    starts: tuple[int, ...]
    """The first memory slices at which an instance may start."""

    @property
    def media_extensions(self) -> bool:
        """True for a profile with media engines (``+me``)."""
        return self.name.endswith("+me")

    def mask(self, start: int) -> int:
        """Return the memory slices of an instance that starts at ``start``."""
        return ((1 << self.memory_slices) - 1) << start


class MigModel(BaseModel):
    """The MIG rules of one kind of GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    models: tuple[str, ...]
    """The names of the GPU models in NVML."""
    compute_slices: int
    memory_slices: int
    basis: str
    profiles: tuple[MigProfile, ...]
    sources: tuple[str, ...]

    @model_validator(mode="after")
    def _fits_the_state(self) -> Self:
        if self.memory_slices > _COMPUTE_SHIFT or self.compute_slices > 7:
            raise ValueError(f"{self.models[0]} has more slices than a state has bits")
        return self

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile of that name, or None."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def starts(self, profile: MigProfile, state: int) -> list[int]:
        """Return every first slice that a new instance may have beside those that exist."""
        compute = (state >> _COMPUTE_SHIFT & 7) + profile.compute_slices
        if compute > self.compute_slices or (profile.media_extensions and state & _ME):
            return []
        return [start for start in profile.starts if not state & profile.mask(start)]

    def best_start(self, name: str, state: int) -> int | None:
        """Return the first slice that leaves the most slices for others. None: there is no place."""
        table = self.best_starts(name)
        start = NOWHERE if table is None else int(table[state])
        return None if start == NOWHERE else start

    def best_starts(self, name: str) -> NDArray[np.int8] | None:
        """Return for each state what :meth:`best_start` gives, or NOWHERE, [4096]. None: the model does not have the
        profile.
        """
        return self._tables.get(name)

    def remaining_slices(self, state: int) -> int:
        """Return what still fits in a state: for each profile, the memory slices of as many instances as fit, added
        up.
        """
        return sum(
            profile.memory_slices * self._still(profile, state)
            for profile in self.profiles
            if not profile.media_extensions
        )

    def grant(self, profile: MigProfile, start: int, gpu_memory_mib: int) -> ShareGrant:
        """Return the share that an instance is. Memory is never more than its slices, so that shares do not exceed
        the GPU.
        """
        slices_mib = gpu_memory_mib * profile.memory_slices // self.memory_slices
        listed_mib = slices_mib if profile.memory_gib is None else int(profile.memory_gib * 1024)
        return ShareGrant(
            mode=ShareMode.MIG,
            percent=100 * profile.compute_slices // self.compute_slices,
            memory_mib=min(slices_mib, listed_mib),
            mig_profile=profile.name,
            mig_start=start,
            mig_size=profile.memory_slices,
        )

    def _still(self, profile: MigProfile, state: int) -> int:
        """Return how many instances of one profile still fit. They are placed from the left, which is best for equal
        lengths.
        """
        count = 0
        while starts := self.starts(profile, state):
            state = state_of([(profile.mask(starts[0]), profile.compute_slices, profile.media_extensions)], state)
            count += 1
        return count

    @cached_property
    def _tables(self) -> dict[str, NDArray[np.int8]]:
        room = {}
        tables = {profile.name: np.full(STATES, NOWHERE, np.int8) for profile in self.profiles}
        for state in range(STATES):
            if state & ((1 << _COMPUTE_SHIFT) - 1) >> self.memory_slices << self.memory_slices:
                continue
            for profile in self.profiles:
                best = NOWHERE, -1
                for start in self.starts(profile, state):
                    after = state_of([(profile.mask(start), profile.compute_slices, profile.media_extensions)], state)
                    if after not in room:
                        room[after] = self.remaining_slices(after)
                    # Of equal starts take the last: the first slices serve the largest profiles.
                    if room[after] >= best[1]:
                        best = start, room[after]
                tables[profile.name][state] = best[0]
        return tables


def state_of(instances: Iterable[tuple[int, int, bool]], before: int = 0) -> int:
    """The state after ``instances`` (memory mask, compute slices, +me) were added to ``before``."""
    for mask, compute, media_extensions in instances:
        before = (before | mask | (_ME if media_extensions else 0)) + (compute << _COMPUTE_SHIFT)
    return before


@cache
def mig_models() -> tuple[MigModel, ...]:
    """Return all known models with MIG."""
    text = (resources.files("gpu_platform.topology") / "mig.yaml").read_text()
    return tuple(MigModel.model_validate(gpu) for gpu in yaml.safe_load(text)["gpus"])


@cache
def mig_model(gpu_model: str) -> MigModel | None:
    """The MIG rules of a GPU that NVML calls ``gpu_model``. None: they are not known."""
    return next((model for model in mig_models() if gpu_model in model.models), None)
