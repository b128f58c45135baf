"""Configuration: defaults, then a YAML file, then ``GPU_PLATFORM_…`` variables.

The file is named by ``GPU_PLATFORM_CONFIG`` or is ``gpu-platform.yaml`` in the working
directory. Nested values use two underscores: ``GPU_PLATFORM_NODE__NAME=dgx-a``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from gpu_platform.settings.access import AccessSettings
from gpu_platform.settings.alerts import AlertSettings
from gpu_platform.settings.cluster import ClusterSettings
from gpu_platform.settings.control import ControlSettings
from gpu_platform.settings.gateway import GatewaySettings
from gpu_platform.settings.node import NodeSettings
from gpu_platform.settings.notifications import NotificationSettings
from gpu_platform.settings.remediation import RemediationSettings
from gpu_platform.settings.scheduler import SchedulerSettings
from gpu_platform.settings.section import ApiUrl, LogLevel
from gpu_platform.settings.service import ServiceSettings
from gpu_platform.settings.temporal import TemporalSettings
from gpu_platform.settings.tls import TlsSettings
from gpu_platform.settings.tracing import TracingSettings

__all__ = [
    "AccessSettings",
    "AlertSettings",
    "ClusterSettings",
    "ControlSettings",
    "GatewaySettings",
    "NodeSettings",
    "NotificationSettings",
    "RemediationSettings",
    "SchedulerSettings",
    "ServiceSettings",
    "Settings",
    "TemporalSettings",
    "TlsSettings",
    "TracingSettings",
    "settings_file",
]


def settings_file() -> Path:
    """Where the YAML file with settings is, or would be."""
    return Path(os.environ.get("GPU_PLATFORM_CONFIG", "gpu-platform.yaml"))


class Settings(BaseSettings):
    """All settings, from ``gpu-platform.yaml`` and from environment variables ``GPU_PLATFORM_…``."""

    model_config = SettingsConfigDict(env_prefix="GPU_PLATFORM_", env_nested_delimiter="__", extra="forbid")

    state_dir: Path = Field(default_factory=lambda: Path.cwd() / ".gpu-platform")
    """Records of ranks, their logs, and the SQLite database."""
    database_url: str | None = None
    """SQLAlchemy address; None: ``<state_dir>/platform.db`` (SQLite, WAL)."""
    newer_schema: Literal["refuse", "accept"] = "refuse"
    """A database whose schema a newer release has made. ``refuse``: processes of this release do not start on it.
    ``accept``: they do, with the columns that they know; for the time in which an upgrade rolls."""
    key_ring: Path | None = None
    """File with the keys that seal secrets and all data in Temporal (``gpu-platform keys create``); a node worker gets
    a file of its own. None: nothing is sealed. ``gpu-platform up`` makes ``<state_dir>/keys``."""
    signing_key: Path | None = None
    """File with the key by which control workers sign orders to hosts (``gpu-platform keys create``). None: they sign
    none."""
    api_url: ApiUrl = "http://127.0.0.1:8700"
    """Where clients and node workers find the service."""
    api_urls: list[ApiUrl] = []
    """More services: a node worker that does not reach one service reports to the next, and a client asks the next."""
    lease_ttl_s: Annotated[float, Field(ge=1)] = 10.0
    """Length of a host's lease. A host that has not reported for this time is suspected, and LOST 0.3 leases later.
    Lower it only while every host reports: a host that is cut off still uses the lease that it got. On PostgreSQL a
    process that stands still in a transaction keeps a host's row for up to 5 s: with a lease below 8 s, that host may
    lose it."""
    fencing: Literal["lease", "strict", "relaxed"] = "lease"
    """What happens to ranks on a host that is cut off, for jobs that do not say. ``lease``: the host ends them before
    the job starts elsewhere. ``strict``: the job starts elsewhere only when the old ranks are known to be dead, or an
    operator declares the host LOST. ``relaxed``: they run on, and two attempts of a job may run at once."""
    log_json: bool = True
    """Log one JSON object for each line; false: text for people."""
    log_level: LogLevel = "INFO"
    """Less important lines are not logged."""
    cluster: ClusterSettings = ClusterSettings()
    metrics_host: str = "127.0.0.1"
    """Address at which schedulers, control workers and the node gateway serve ``/metrics`` (plain HTTP, for everybody
    who reaches it). Their ``metrics_port`` may be 0: any free one, or None: not served. If a port is taken, the process
    says so and takes a free one."""
    tls: TlsSettings = TlsSettings()
    tracing: TracingSettings = TracingSettings()
    temporal: TemporalSettings = TemporalSettings()
    access: AccessSettings = AccessSettings()
    service: ServiceSettings = ServiceSettings()
    gateway: GatewaySettings = GatewaySettings()
    control: ControlSettings = ControlSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    alerts: AlertSettings = AlertSettings()
    notifications: NotificationSettings = NotificationSettings()
    remediation: RemediationSettings = RemediationSettings()
    node: NodeSettings = Field(default_factory=NodeSettings)

    @model_validator(mode="after")
    def _default_priorities_are_known_levels(self) -> Self:
        known = self.access.priorities
        for name, level in self.service.job_defaults.levels().items():
            if isinstance(level, str) and level not in known:
                raise ValueError(
                    f"service.job_defaults.{name} is {level!r}, which is not in access.priorities: "
                    f"write {', '.join(known)}, or a number"
                )
        return self

    @property
    def store_url(self) -> str:
        """The SQLAlchemy address of the database."""
        return self.database_url or f"sqlite:///{self.state_dir / 'platform.db'}"

    @property
    def job_archive(self) -> Path:
        """The directory for ended jobs."""
        return self.scheduler.job_archive or self.state_dir / "archive"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Called by pydantic. Arguments win over environment variables, and these over the file
        ``GPU_PLATFORM_CONFIG``."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=settings_file())
