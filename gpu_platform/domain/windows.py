"""Advance reservations and maintenance windows as people ask for them, and as the API shows them.

What the scheduler reads of them is ``placing.window``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.jobs.host_choice import HostPatterns
from gpu_platform.domain.jobs.resources import Models
from gpu_platform.domain.placing.window import Repeat
from gpu_platform.domain.texts import check_name

MAX_DURATION_S = 366 * 24 * 3600
_Names = Annotated[tuple[str, ...], Field(max_length=256)]
_Duration = Annotated[int | None, Field(ge=1, le=MAX_DURATION_S, description="Seconds; instead of end_at")]


class WindowRequest(BaseModel):
    """Keep hosts or GPUs for a time: for somebody's jobs, or for maintenance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(description="1 to 63 of letters, digits, '.', '_', '-'", examples=["course"])]
    maintenance: Annotated[
        bool, Field(description="A maintenance window: no jobs run, and its hosts are drained meanwhile")
    ] = False
    start_at: Annotated[AwareDatetime | None, Field(description="None: at once")] = None
    end_at: AwareDatetime | None = None
    duration_s: _Duration = None
    repeat: Annotated[Repeat | None, Field(description="Again after 24 hours, or after 7 days")] = None
    until_at: Annotated[AwareDatetime | None, Field(description="It does not begin again then or later")] = None
    hosts: Annotated[
        HostPatterns, Field(description="Whole hosts by name, with patterns", examples=[["dgx-[1-4]"]])
    ] = ()
    host_count: Annotated[int | None, Field(ge=1, description="Instead of hosts: so many whole hosts")] = None
    gpu_count: Annotated[int | None, Field(ge=1, description="Instead of hosts: so many GPUs")] = None
    gpu_model: Annotated[Models | None, Field(description="With host_count or gpu_count: of these models")] = None
    namespaces: Annotated[_Names, Field(description="Whose jobs may use it")] = ()
    users: Annotated[_Names, Field(description="Whose jobs may use it; with namespaces both must hold")] = ()
    reason: Annotated[str, Field(max_length=500)] = ""
    stop_running: Annotated[
        bool,
        Field(description="Jobs that may still run when it begins are stopped then and queue again; else refused"),
    ] = False

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        return check_name(value)

    @field_validator("namespaces", "users")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_name(one) for one in value)

    @model_validator(mode="after")
    def _says_what_and_when(self) -> Self:
        if sum((bool(self.hosts), self.host_count is not None, self.gpu_count is not None)) != 1:
            raise ValueError("say one of hosts, host_count and gpu_count")
        if self.gpu_model is not None and self.hosts:
            raise ValueError("gpu_model chooses hosts or GPUs by number, and hosts names them: leave one out")
        if self.maintenance and self.gpu_count is not None:
            raise ValueError("maintenance is of whole hosts: say hosts or host_count")
        if self.maintenance and (self.namespaces or self.users):
            raise ValueError("nobody's jobs run in a maintenance window: leave namespaces and users out")
        if not self.maintenance and not (self.namespaces or self.users):
            raise ValueError("say whose jobs may use it: namespaces or users; or maintenance")
        _check_times(self.start_at, self.end_at, self.duration_s, self.repeat, self.until_at)
        if (self.end_at is None) == (self.duration_s is None):
            raise ValueError("say either end_at or duration_s")
        return self


class WindowChanges(BaseModel):
    """Changes of a window. A field that is left out stays as it is. Hosts and kind stay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start_at: Annotated[AwareDatetime | None, Field(description="Of the next occurrence; not while it is open")] = None
    end_at: AwareDatetime | None = None
    duration_s: _Duration = None
    repeat: Annotated[Repeat | None, Field(description="null: not again")] = None
    until_at: Annotated[AwareDatetime | None, Field(description="null: for ever")] = None
    namespaces: _Names | None = None
    users: _Names | None = None
    reason: Annotated[str | None, Field(max_length=500)] = None
    stop_running: bool = False

    @model_validator(mode="after")
    def _are_possible(self) -> Self:
        _check_times(self.start_at, self.end_at, self.duration_s, None, None)
        if self.end_at is not None and self.duration_s is not None:
            raise ValueError("say either end_at or duration_s")
        return self


class WindowHost(BaseModel):
    """What a window keeps of one host."""

    host: str
    gpus: int
    """How many GPUs."""
    gpu_indices: list[int] | None = None
    """None: the whole host."""


class Window(BaseModel):
    """An advance reservation or a maintenance window as the API shows it. Times are UTC, of its one occurrence: the one
    that is open, or the next one."""

    name: str
    maintenance: bool
    is_open: bool
    start_at: datetime
    end_at: datetime
    repeat: Repeat | None = None
    until_at: datetime | None = None
    hosts: list[WindowHost] = []
    namespaces: list[str] = []
    users: list[str] = []
    reason: str = ""
    actor: str = ""
    """Who made it."""
    created_at: datetime
    jobs: list[str] = []
    """Jobs that run in it now, or wait for it. Only when one window is shown."""
    to_stop: list[str] = []
    """Jobs that hold what it keeps, and may still run when it begins. They are stopped then. Only when one is shown."""


def _check_times(
    start: datetime | None, end: datetime | None, duration_s: int | None, repeat: Repeat | None, until: datetime | None
) -> None:
    if start is not None and end is not None and end <= start:
        raise ValueError("end_at must be later than start_at")
    lasts_s = duration_s
    if start is not None and end is not None:
        lasts_s = int((end - start) / timedelta(seconds=1))
    if repeat is not None and lasts_s is not None and lasts_s >= repeat.period_s:
        raise ValueError(f"it lasts {lasts_s} s, and would begin again after {repeat.period_s} s: make it shorter")
    if until is not None and repeat is None:
        raise ValueError("until_at is for windows that repeat: say repeat, too")
