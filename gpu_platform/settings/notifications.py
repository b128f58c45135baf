"""The section ``notifications`` of the settings: who is told of alerts, and what users may name for their jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from gpu_platform.domain.jobs.notify import NotifyOn, check_address
from gpu_platform.domain.notifications import Severity
from gpu_platform.domain.texts import check_name
from gpu_platform.settings.section import Section


class NotificationTarget(Section):
    """One address to which messages are sent: mail, a chat, a webhook."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
    """What logs, metrics and ``alerts test --target`` call it."""
    url: SecretStr | None = None
    """Its Apprise URL. It often holds a password or a token, so that ``url_file`` is better."""
    url_file: Path | None = None
    """A file with the Apprise URL, which only its owner may read."""
    severities: list[Severity] = [Severity.CRITICAL, Severity.WARNING]
    """Alerts of these severities go there; empty: none. None go to a ``personal`` target."""
    namespaces: list[str] = []
    """Users may name it in ``submit --notify`` for jobs of these namespaces, ``["*"]``: of all; empty: for none."""
    personal: bool = False
    """true: messages of jobs go to addresses of users, in place of the recipients of the URL, which must be mail:
    ``mailto://`` or ``mailtos://``."""
    domains: list[str] = []
    """If ``personal``: users may name addresses of these domains. Without it, only their own, as the identity provider
    (``access.oidc.mail_claim``) or ``user_domain`` says it."""
    user_domain: str | None = None
    """If ``personal``: the address of a user whom no identity provider gives one is USER@user_domain, for example
    ``lab.example``."""

    @model_validator(mode="after")
    def _has_one_url(self) -> Self:
        if (self.url is None) == (self.url_file is None):
            raise ValueError(f"target {self.name}: give either url or url_file")
        if not self.personal and (self.domains or self.user_domain):
            raise ValueError(f"target {self.name}: domains and user_domain are for a target with personal: true")
        if self.personal and not self.namespaces:
            raise ValueError(f'target {self.name} is personal, but open to no namespace: set namespaces, e.g. ["*"]')
        return self

    @field_validator("namespaces")
    @classmethod
    def _are_names(cls, value: list[str]) -> list[str]:
        return [name if name == "*" else check_name(name) for name in value]

    @field_validator("domains", "user_domain")
    @classmethod
    def _are_domains(cls, value: list[str] | str | None) -> list[str] | str | None:
        if isinstance(value, list):
            return [check_address(f"user@{domain}").partition("@")[2] for domain in value]
        return None if value is None else check_address(f"user@{value}").partition("@")[2]


class NotifyDefaults(Section):
    """Who is told of jobs that say nothing of it."""

    namespaces: list[str] = ["*"]
    """For jobs of these namespaces; ``*``: of all."""
    events: Annotated[list[NotifyOn], Field(min_length=1)]
    """Of what."""
    target: str
    """The name of a target that is open to these namespaces."""


class NotificationSettings(Section):
    """Who is told of alerts and jobs; read by control workers, all of which need the same targets. Messages are sent by
    Apprise (https://appriseit.com/services): mail, Slack, Teams, PagerDuty, webhooks and many more."""

    targets: list[NotificationTarget] = []
    """Where messages go, each with ``name``, ``url`` or ``url_file``, and ``severities`` (default: ``[critical,
    warning]``), e.g. ``[{name: on-call, url_file: /etc/gpu-platform/on-call.url, severities: [critical]}]``. What users
    may name for their jobs has ``namespaces``, and ``personal``, ``domains`` and ``user_domain`` if it sends mail to
    them: see the how-to of notifications."""
    group_wait_s: Annotated[float, Field(ge=0, le=600)] = 30.0
    """How long alerts of one name are gathered into one message, after the first of them."""
    repeat_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 12.0
    """While alerts of a name go on, their message is sent again after so many hours."""

    defaults: list[NotifyDefaults] = []
    """Who is told of jobs that say nothing of it, each with ``namespaces``, ``on`` and ``target``, e.g. ``[{namespaces:
    [team-a], events: [fail], target: team-a}]``."""
    job_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """How long what happens to a user's jobs is gathered into one message."""
    user_messages_per_hour: Annotated[int, Field(ge=1, le=1000)] = 20
    """The most messages about one user's jobs in an hour, to all targets together. What happens after that comes in one
    message when the hour is over."""
    give_up_hours: Annotated[float, Field(gt=0, le=24 * 14)] = 24.0
    """How long a message about jobs is tried. Then an event of each of its jobs says that nobody was told."""
    dashboard_url: str | None = None
    """Where people open the dashboard, e.g. ``https://gpu.example``; messages about jobs link to it."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        counted = Counter(target.name for target in self.targets)
        if twice := [name for name, count in counted.items() if count > 1]:
            raise ValueError(f"two targets have the name {twice[0]!r}")
        for default in self.defaults:
            found = [target for target in self.targets if target.name == default.target and target.namespaces]
            if not found:
                raise ValueError(f"defaults name the target {default.target!r}, which is not open: set its namespaces")
        return self

    @property
    def opens_targets(self) -> bool:
        """True if users may name any target."""
        return any(target.namespaces for target in self.targets)
