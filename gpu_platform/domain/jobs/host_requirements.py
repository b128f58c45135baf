"""What a job requires of every host that it runs on."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class HostRequirements(BaseModel):
    """Fields that the submission, the scheduler and the hosts all see as the user wrote them.

    ``JobSpec`` and ``HostPlan`` have these fields, so that a new one is written down once.
    """

    require_isolation: Annotated[
        bool,
        Field(description="Run only on hosts whose kernel isolates ranks (jailed), never as plain processes"),
    ] = False

    @property
    def host_requirements(self) -> HostRequirements:
        """This part alone."""
        return HostRequirements(**{name: getattr(self, name) for name in HostRequirements.model_fields})
