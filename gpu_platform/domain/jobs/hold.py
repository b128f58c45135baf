"""A hold: a job that waits is not placed until somebody releases it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gpu_platform.domain.jobs.placement import Reason, WaitCode


class Hold(BaseModel):
    """Who holds a job, and why."""

    model_config = ConfigDict(frozen=True)

    actor: str
    reason: str = ""
    by_operator: bool = False
    """An operator holds somebody else's job: its owner may not release it."""
    of_array: bool = False
    """An element is held with its array."""

    @property
    def message(self) -> str:
        """What the job is told."""
        return f"held by {self.actor}" + (f": {self.reason}" if self.reason else "")

    def as_reason(self) -> Reason:
        """Return the reason with which the job waits."""
        what = "the array" if self.of_array else "it"
        who = "an operator must release" if self.by_operator else "release"
        return Reason(code=WaitCode.HELD, message=self.message, next_step=f"{who} {what}: gpu-platform jobs release")


def hold_reason(text: str) -> Reason:
    """Return why a job waits that has this hold, in JSON."""
    return Hold.model_validate_json(text).as_reason()
