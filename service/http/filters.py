"""The filters of lists of jobs and arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.work_kind import WorkKind


@dataclass(frozen=True)
class JobFilters:
    """Only jobs, or arrays, with these values. None: any."""

    namespace: str | None = None
    user: str | None = None
    name: str | None = None
    kind: Annotated[WorkKind | None, Query(description="Kind of work, named or (of jobs) inferred")] = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of the store's functions that list."""
        return {"namespace": self.namespace, "user": self.user, "name": self.name, "kind": self.kind}

    def check_empty(self) -> None:
        """Raise :class:`InvalidRequest` for a filter that cannot tell elements of one array apart."""
        for name, value in self.arguments().items():
            if value is not None:
                raise InvalidRequest(f"all elements of an array have the same {name}: leave `{name}` out, or `array`")


JobFiltersDep = Annotated[JobFilters, Depends()]
