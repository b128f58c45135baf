"""Notifications: how urgent they are, what is sent, to whom, and what came of it. Activities, workflows and the service
share these shapes.

None holds the address of a target: addresses have passwords in them and stay in the configuration of control workers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel

from gpu_platform.domain.jobs.notify import NotifyOn


class Severity(StrEnum):
    """The label ``severity`` of an alert."""

    CRITICAL = "critical"
    """Somebody must act now."""
    WARNING = "warning"
    """Somebody must act today."""
    INFO = "info"
    """It is good to know."""

    @classmethod
    def of(cls, label: str) -> Severity:
        """The severity that a label names. Labels of other rules, as ``page``, count as a warning."""
        return next((one for one in cls if one == label), cls.WARNING)


Tone = Literal["info", "success", "warning", "failure"]
"""How a message looks, where a target can show it: Apprise's types of messages."""


class Message(BaseModel):
    """A message in plain text."""

    title: str
    body: str
    tone: Tone = "info"


class PlannedTarget(BaseModel):
    """A target that a message may go to."""

    name: str
    severities: list[Severity]


class NotificationPlan(BaseModel):
    """What a workflow needs of the settings ``notifications``."""

    cluster: str
    targets: list[PlannedTarget]
    group_wait_s: float
    repeat_hours: float
    job_wait_s: float = 10.0
    """How long notices of jobs are gathered into one message."""
    user_messages_per_hour: int = 20
    give_up_hours: float = 24.0
    """How long a message about jobs is tried."""
    open_targets: list[str] = []
    """Targets that users may name; they need not be among ``targets``, which get alerts."""


class Notification(BaseModel):
    """One message for one target."""

    target: str
    message: Message
    address: str | None = None
    """The recipient, for a target that sends to addresses of users."""


class NotificationTest(BaseModel):
    """A message that is tried once, to see whether targets can be reached."""

    target: str | None = None
    """None: all that get alerts."""
    address: str | None = None
    """The recipient, for a target that sends to addresses of users."""
    actor: str


class Delivery(BaseModel):
    """What came of a message for one target."""

    target: str
    sent: bool
    reason: str = ""
    """Why it was not sent."""


class OpenTarget(BaseModel):
    """A target that users may name in ``notify``. It holds nothing of the target's address."""

    name: str
    kind: str
    """What it sends, as the scheme of its URL says: ``mailtos``, ``slack``, ``json``."""
    namespaces: list[str]
    """For jobs of these namespaces; ``*``: of all."""
    personal: bool = False
    """It sends mail to addresses of users."""
    domains: list[str] = []
    """If personal: addresses of these domains may be named."""
    user_domain: str | None = None
    """If personal: a user whose address nobody told has USER@user_domain."""

    def is_open_to(self, namespace: str) -> bool:
        """True if jobs of the namespace may name it."""
        return "*" in self.namespaces or namespace in self.namespaces


class ShownTarget(BaseModel):
    """A target as users see it."""

    name: str
    kind: str
    """What it sends, as the scheme of its URL says: ``mailtos``, ``slack``, ``json``."""
    namespaces: list[str]
    """For jobs of these namespaces; ``*``: of all."""
    personal: bool = False
    """It sends mail to addresses of users."""
    domains: list[str] = []
    """Addresses of these domains may be named."""
    address: str | None = None
    """One's own address. None: it is not personal, or nobody told the address."""


class NotifyDefault(BaseModel):
    """Who is told of jobs that do not say it."""

    namespaces: list[str]
    events: tuple[NotifyOn, ...]
    target: str


class OpenTargets(BaseModel):
    """What control workers tell the service: which targets users may name, and the defaults."""

    targets: list[OpenTarget] = []
    defaults: list[NotifyDefault] = []

    def of(self, namespace: str) -> list[OpenTarget]:
        """The targets that jobs of the namespace may name."""
        return [target for target in self.targets if target.is_open_to(namespace)]
