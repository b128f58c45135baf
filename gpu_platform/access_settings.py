"""The section ``access`` of the settings: namespaces, priorities, and people who sign in elsewhere (OIDC)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.texts import check_name


class AccessSettings(BaseModel):
    """Who may do what; read by the service."""

    model_config = ConfigDict(extra="forbid")

    namespaces: list[str] = []
    """Namespaces of jobs, besides ``default``, those of ``scheduler.policy.quotas``, and those in which somebody has a
    role. Jobs of other namespaces are refused."""
    open_namespaces: bool = False
    """true: a job may name any namespace in which its user has a role; a namespace without a quota has no limit."""
    priorities: dict[str, Annotated[int, Field(ge=-1000, le=1000)]] = {
        "low": -100,
        "normal": 0,
        "high": 100,
        "urgent": 1000,
    }
    """Named levels of priority, for ``submit --priority high`` and ``access.max_priority``."""
    max_priority: dict[Role, str | int] = {Role.USER: "normal", Role.OPERATOR: "urgent", Role.ADMIN: "urgent"}
    """Role -> the highest priority of its jobs: a level or a number. A token may have another."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name in self.namespaces:
            check_name(name)
        for role, level in self.max_priority.items():
            if isinstance(level, str) and level not in self.priorities:
                raise ValueError(f"max_priority of {role} is {level!r}, which is not in priorities")
        return self

    def highest_priority(self, role: Role) -> int:
        """The highest priority that somebody with this role may give to a job."""
        allowed = [level for of, level in self.max_priority.items() if role.includes(of)]
        return max((self.priorities[one] if isinstance(one, str) else one for one in allowed), default=0)
