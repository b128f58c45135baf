"""Dependencies: a job or an array waits until other jobs and arrays have ended, each of them as it asks for.

What is said of jobs here holds for arrays and for their elements, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.states import JobState

MAX_DEPENDENCIES = 256
_SHOWN = 3
"""How many jobs a message names."""


class DependencyKind(StrEnum):
    """How the other job must end. Slurm: afterok, afterany, afternotok."""

    OK = "ok"
    """COMPLETED."""
    ANY = "any"
    """However it ends."""
    FAIL = "fail"
    """FAILED or CANCELLED."""
    EACH = "each"
    """Between two arrays with the same indices: an element starts once the element of the other array with its index
    has COMPLETED. Slurm: aftercorr."""


class IfUnmet(StrEnum):
    """What happens to a job once a dependency can no longer be met."""

    CANCEL = "cancel"
    HOLD = "hold"
    """It waits until somebody cancels or releases it."""


class Dependency(BaseModel):
    """One job, array or element of an array that must end before this job or array may start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job_id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=64,
            pattern=r"^[\w.-]+$",
            description="A job, an array (a-…) or an element of one (a-….17)",
            examples=["j-1jrp3k2h0x4t7za"],
        ),
    ]
    kind: DependencyKind = DependencyKind.OK


class Standing(StrEnum):
    """Whether a dependency, or all of a job together, is met."""

    WAITS = "waits"
    MET = "met"
    UNMET = "unmet"
    """It can never be met any more."""


@dataclass(frozen=True)
class WatchedJob:
    """A dependency and what is known of the other job."""

    job_id: str
    kind: DependencyKind
    state: JobState | None
    """None: there is no such job."""
    is_forgotten: bool = False
    """It has not been there for so long that it will not be restored either."""

    @property
    def standing(self) -> Standing:
        """Whether the dependency is met."""
        if self.state is None:
            return Standing.UNMET if self.is_forgotten else Standing.WAITS
        if not self.state.is_terminal:
            return Standing.WAITS
        completed = self.state is JobState.COMPLETED
        met = {DependencyKind.ANY: True, DependencyKind.FAIL: not completed}.get(self.kind, completed)
        return Standing.MET if met else Standing.UNMET

    @property
    def why_unmet(self) -> str:
        """Why it can never be met."""
        if self.state is None:
            return f"{named(self.job_id)} is not known any more"
        if self.kind is DependencyKind.FAIL:
            return f"{named(self.job_id)} ended {self.state}, and this job was to run only if it failed"
        return f"{named(self.job_id)} ended {self.state}, and this job was to run only after it had COMPLETED"

    def __str__(self) -> str:
        wanted = " to fail" if self.kind is DependencyKind.FAIL else ""
        return f"{self.job_id} ({'not known' if self.state is None else self.state}){wanted}"


def named(job_id: str) -> str:
    """How messages name a job or an array."""
    return f"array {job_id}" if is_array_id(job_id) else f"job {job_id}"


def standing_of(jobs: Sequence[WatchedJob]) -> Standing:
    """All must be met; one that is unmet decides at once."""
    found = {job.standing for job in jobs}
    return next((one for one in (Standing.UNMET, Standing.WAITS) if one in found), Standing.MET)


def waiting_reason(jobs: Sequence[WatchedJob]) -> Reason | None:
    """Why a job with these dependencies waits. None: they are met."""
    unmet = [job for job in jobs if job.standing is Standing.UNMET]
    if unmet:
        return Reason(
            code=WaitCode.HELD,
            message=f"held: {unmet[0].why_unmet}",
            next_step="cancel it, or release it (gpu-platform jobs release): then it waits for no other job",
        )
    open_ones = [job for job in jobs if job.standing is Standing.WAITS]
    if not open_ones:
        return None
    shown = ", ".join(str(job) for job in open_ones[:_SHOWN])
    more = f" and {len(open_ones) - _SHOWN} more" if len(open_ones) > _SHOWN else ""
    arrays = sum(is_array_id(job.job_id) for job in open_ones)
    what = "array" if arrays == len(open_ones) else "job" if not arrays else "job and array"
    plural = "s" if len(open_ones) > 1 else ""
    return Reason(code=WaitCode.DEPENDENCY, message=f"waits for {what}{plural} {shown}{more}")
