"""The sections ``temporal`` and ``gateway`` of the settings: where Temporal is, and how hosts reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpu_platform.setting_types import HostAndPort, MetricsPort


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TemporalSettings(_Section):
    """Where Temporal is."""

    address: HostAndPort = "127.0.0.1:7233"
    """Host and port of the Temporal frontend."""
    namespace: str = "default"
    """Temporal's namespace, not that of jobs."""
    tls: bool = False
    """true: TLS to Temporal. With ``tls_cert`` also with a certificate of ours (mTLS)."""
    tls_ca: Path | None = None
    """The authorities of Temporal's certificate (PEM); None: those of the operating system."""
    tls_cert: Path | None = None
    """The certificate that Temporal asks for, with its chain (PEM)."""
    tls_key: Path | None = None
    """The key of ``tls_cert``; None: it is in the same file."""
    tls_server_name: str | None = None
    """The name in Temporal's certificate, if it is not the host in ``address``."""
    plain_payloads: Literal["refuse", "accept"] = "refuse"
    """With a key ring: whether data in Temporal that is not sealed is taken. Accept it until the jobs that
    began without a key ring have ended."""
    worker_versioning: bool = False
    """true: control workers use Temporal's worker versioning, and an operator switches from one release to the next.
    All control workers need the same; see ``docs/how-to/switch-releases.md``."""
    worker_build_id: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")] = None
    """The version that this control worker has in ``worker_versioning``, e.g. a commit. None: the release."""
    ui_url: str | None = None
    """Base address of the Temporal UI, for links, e.g. ``http://127.0.0.1:8233``."""


class GatewaySettings(_Section):
    """The node gateway, through which hosts reach Temporal: ``python -m workers.gateway``. A node worker behind it sets
    ``temporal.address`` to the gateway."""

    host: str = "127.0.0.1"
    """Address on which it listens. It takes certificates of hosts only."""
    port: Annotated[int, Field(ge=0, le=65535)] = 7243
    """Port for node workers."""
    metrics_port: MetricsPort = 8704
    """Port of its ``/metrics``, see ``metrics_host``."""
