"""What if: the scheduler's core is run on the live state as it is, and once more with other hosts or another policy."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_HOSTS = 1000
MAX_UNTIL_S = 90 * 86400
SHOWN_STARTS = 1000
"""Of so many waiting jobs the starts are told."""


class AddedHosts(BaseModel):
    """Hosts that the cluster does not have."""

    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1, le=MAX_HOSTS)]
    like: Annotated[str | None, Field(max_length=253, description="A host of the cluster: they are as it is")] = None
    machine: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9._-]{1,100}$", description="Instead: a machine type", examples=["dgx-h100"]),
    ] = None

    @model_validator(mode="after")
    def _says_what_they_are(self) -> Self:
        if (self.like is None) == (self.machine is None):
            raise ValueError("say either like, the name of a host, or machine, a machine type")
        return self


class WhatIfRequest(BaseModel):
    """What is different, and for how long."""

    model_config = ConfigDict(extra="forbid")

    hosts: Annotated[list[AddedHosts], Field(max_length=8)] = []
    settings: Annotated[
        list[Annotated[str, Field(max_length=500)]],
        Field(max_length=32, description="Settings of the policy that differ", examples=[["backfill=none"]]),
    ] = []
    lasting_s: Annotated[
        float | None,
        Field(ge=1, le=MAX_UNTIL_S, description="Run time of jobs without a time limit; default: they run for ever"),
    ] = None
    until_s: Annotated[
        float | None, Field(ge=1, le=MAX_UNTIL_S, description="When it stops; default: when all jobs have ended")
    ] = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        added = sum(group.count for group in self.hosts)
        if added > MAX_HOSTS:
            raise ValueError(f"{added} hosts are added; at most {MAX_HOSTS} are possible")
        return self


class WhatIfSeries(BaseModel):
    """The mean of each quantity over equal intervals."""

    at_s: list[float]
    """The middle of each interval, in seconds since the snapshot."""
    held_gpus: list[float]
    waiting_jobs: list[float]


class WhatIfRun(BaseModel):
    """What the scheduler would do."""

    name: str
    gpus: int
    end_s: float
    """When the last job ended, or when it was stopped. Seconds since the snapshot."""
    allocation_ratio: float
    """GPU time that jobs held, divided by that of GPUs in working order."""
    started: int
    """Waiting jobs that started."""
    waiting: int
    """Jobs that still wait at the end."""
    preemptions: int
    wait_p50_s: float
    """Of waiting jobs that started: the median time from the snapshot to the start."""
    wait_p90_s: float
    wait_max_s: float
    series: WhatIfSeries


class WhatIfStart(BaseModel):
    """When one waiting job would start."""

    job_id: str
    namespace: str
    gpus: int
    now_s: float | None = None
    """As it is, in seconds since the snapshot. None: not before the end."""
    then_s: float | None = None
    """With the changes."""


class WhatIf(BaseModel):
    """The answer. Jobs run to their time limits, and no new ones come: it compares, and promises nothing."""

    at: datetime
    """When the state was read, UTC."""
    notes: list[str]
    """What was assumed."""
    now: WhatIfRun
    then: WhatIfRun
    starts: list[WhatIfStart]
    """Of jobs that wait, those first that start first as it is."""
