"""Checkpoints of jobs: what a job asks for, and which checkpoints there are."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gpu_platform.domain.jobs.verified import Verified

_RESUME_FROM = re.compile(
    r"(?P<job>[A-Za-z0-9][A-Za-z0-9_.-]{0,127})(:(?P<attempt>\d{1,6})(/(?P<name>[^/\0:]{1,255}))?)?"
)


class ResumePoint(BaseModel):
    """The checkpoint that a job begins with: the newest complete one of another job, or a named one."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    attempt: int | None = None
    """None: the newest of all attempts."""
    name: str | None = None
    """None: the newest of the attempt."""

    def __str__(self) -> str:
        attempt = "" if self.attempt is None else f":{self.attempt}"
        return f"{self.job_id}{attempt}" + (f"/{self.name}" if self.name else "")


class CheckpointPolicy(BaseModel):
    """A job's wishes about checkpoints. The host's settings fill what it leaves out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every_s: Annotated[
        int | None,
        Field(ge=1, le=366 * 24 * 3600, description="Interval at which the program is asked for a checkpoint"),
    ] = None
    keep: Annotated[
        int | None,
        Field(
            ge=1, le=10_000, description="How many of the newest complete checkpoints are kept; older ones are removed"
        ),
    ] = None
    signal: Annotated[
        Literal["USR1", "USR2", "HUP", "none"] | None,
        Field(description="Sent with each request to processes that handle it; the request file is always written"),
    ] = None
    resume_from: Annotated[
        str | None,
        Field(description="Start from a checkpoint of another job", examples=["j-1jrp3k2h0x4t7za:1/step-300"]),
    ] = None

    @field_validator("resume_from")
    @classmethod
    def _names_a_checkpoint(cls, value: str | None) -> str | None:
        if value is not None:
            parse_resume_point(value)
        return value

    @property
    def resume_point(self) -> ResumePoint | None:
        """``resume_from`` as data. None: the job begins with no checkpoint of another job."""
        return None if self.resume_from is None else parse_resume_point(self.resume_from)


def parse_resume_point(text: str) -> ResumePoint:
    """Read ``JOB``, ``JOB:ATTEMPT`` or ``JOB:ATTEMPT/NAME``, as ``jobs checkpoints`` lists them. Raises
    ``ValueError``."""
    match = _RESUME_FROM.fullmatch(text)
    if match is None or match["name"] in (".", ".."):
        raise ValueError(f"{text!r} names no checkpoint: write JOB, JOB:ATTEMPT or JOB:ATTEMPT/NAME")
    attempt = None if match["attempt"] is None else int(match["attempt"])
    return ResumePoint(job_id=match["job"], attempt=attempt, name=match["name"])


class CheckpointInfo(BaseModel):
    """A checkpoint as one host sees it now."""

    job_id: str
    attempt: int
    name: str
    """Its directory below the attempt's directory. Empty: the attempt's directory itself."""
    step: int | None = None
    written_at: float
    """Unix seconds, by the clock of the file system."""
    size_bytes: int | None = None
    """None: it has no manifest."""
    verified: Verified | None = None
    """None: it is damaged, see ``problem``; nothing resumes from it."""
    problem: str | None = None
    kept: bool = False
    """The program asked that it is never removed."""
    path: str
    """Its path on the hosts that see it."""
    hosts: list[str] = []
    """The hosts that are known to see it."""

    @property
    def complete(self) -> bool:
        """True if a job can resume from it."""
        return self.problem is None

    @property
    def label(self) -> str:
        """Its name within the job, as in a resume point: ``1/step-300``."""
        return f"{self.attempt}/{self.name}" if self.name else str(self.attempt)
