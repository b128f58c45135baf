"""Who is told of a job, and of what: the field ``notify`` of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

MAX_RULES = 8
"""Of one job. Each may name another target."""
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}@((?=[a-z0-9])[a-z0-9-]{1,63}(?<!-)\.)+[a-z]{2,63}")
_LONGEST_ADDRESS = 254
"""RFC 5321, 4.5.3.1.3, less the brackets."""


class NotifyOn(StrEnum):
    """What somebody may be told of."""

    START = "start"
    """An attempt runs."""
    END = "end"
    """The job has ended, however."""
    FAIL = "fail"
    """The job is FAILED."""
    REQUEUE = "requeue"
    """An attempt ended, and the job waits for another one: a failure, a fault or a preemption."""
    LIMIT = "limit"
    """A tenth of the time limit is left."""
    PROMISE = "promise"
    """The promised start was moved or taken back."""


def check_address(text: str) -> str:
    """The mail address with its domain in lower case. Only plain ones are taken: no quotes, no commas, no comments, so
    that an address is one recipient and nothing else. Raises ``ValueError``."""
    name, _, domain = text.rpartition("@")
    found = f"{name}@{domain.lower()}"
    if len(found) > _LONGEST_ADDRESS or not _ADDRESS.fullmatch(found) or ".." in found or ".@" in found:
        raise ValueError(f"{text[:80]!r} is not a mail address that is taken here: write NAME@DOMAIN")
    return found


class NotifyRule(BaseModel):
    """Of what somebody is told, and where."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    events: Annotated[
        tuple[NotifyOn, ...],
        Field(min_length=1, max_length=len(NotifyOn), description="Of what somebody is told", examples=[["end"]]),
    ]
    target: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$",
            description="A name of `notifications.targets` that is open to the job's namespace; None: the only one",
        ),
    ] = None
    address: Annotated[
        str | None,
        Field(
            max_length=_LONGEST_ADDRESS,
            description="For a target that sends to addresses of users; None: the user's own address",
        ),
    ] = None

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        return None if value is None else check_address(value)

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if len(set(self.events)) < len(self.events):
            raise ValueError("`events` names something twice")
        return self


RULES = TypeAdapter(tuple[NotifyRule, ...])


def as_column(rules: Sequence[NotifyRule]) -> str | None:
    """The rules as the database keeps them beside the specification. None: nobody is told."""
    return RULES.dump_json(tuple(rules)).decode() if rules else None
