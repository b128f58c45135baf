"""What was decided about one request, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_platform.domain.access.principal import Principal
from gpu_platform.domain.access.rules import AccessVerdict, RouteRule, Subject


@dataclass(frozen=True)
class AccessDecision:
    """One decision: who asked, as whom, from where, for what, and the verdict."""

    verdict: AccessVerdict
    route: str
    """The line of the table: ``POST /v1/jobs/{job_id}/kill``."""
    path: str
    rule: RouteRule
    subject: Subject
    principal: Principal | None = None
    """None: not signed in."""
    acting_as: str | None = None
    """The user in whose name an operator acts."""
    peer: str | None = None
    """The address of the other side."""
    request_id: str | None = None
    break_glass: str | None = None
    """The reason that an operator gave."""
    message: str = ""
    """Why it was refused."""

    @property
    def changes_something(self) -> bool:
        """True if the request is more than reading."""
        return not self.route.startswith("GET ")


Recorder = Callable[[AccessDecision], None]
"""Called with every decision, before the request goes on, in a thread of its own. If it raises, the request fails."""
