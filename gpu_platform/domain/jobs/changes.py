"""What may be changed of a job that waits: its priority, its time limit, and the jobs that it comes after."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gpu_platform.domain.jobs.dependency import MAX_DEPENDENCIES, Dependency
from gpu_platform.domain.jobs.spec import MAX_TIME_LIMIT_S, JobSpec
from gpu_platform.domain.name import Name


class JobChanges(BaseModel):
    """Changes of a job. A field that is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    priority: Annotated[int | None, Field(ge=-1000, le=1000, description="Higher goes first")] = None
    time_limit_s: Annotated[
        int | None,
        Field(ge=1, le=MAX_TIME_LIMIT_S, description="Longest wall-clock time of one attempt; null: no limit"),
    ] = None
    after: Annotated[
        tuple[Dependency, ...] | None,
        Field(
            max_length=MAX_DEPENDENCIES, description="Comes after these jobs instead of those before; []: after none"
        ),
    ] = None

    reservation: Annotated[Name | None, Field(description="Runs in this advance reservation; null: in none")] = None

    def applied_to(self, spec: JobSpec) -> JobSpec:
        """Return the job with the changes. Raises ``ValueError`` if it cannot be so."""
        update: dict[str, Any] = {}
        if self.priority is not None:
            update["priority"] = self.priority
        if "time_limit_s" in self.model_fields_set:
            update["time_limit_s"] = self.time_limit_s
        if "reservation" in self.model_fields_set:
            update["reservation"] = self.reservation
        if self.after is not None:
            update |= {"after": self.after, "if_unmet": spec.if_unmet if self.after else None}
        return JobSpec.model_validate(spec.model_copy(update=update).model_dump())


class LimitChange(BaseModel):
    """The time limit that a job got while it waited, for its workflow, which knows the one of the submission."""

    time_limit_s: int | None

    def applied_to(self, spec: JobSpec) -> JobSpec:
        """Return the job with this limit."""
        return spec.model_copy(update={"time_limit_s": self.time_limit_s})
