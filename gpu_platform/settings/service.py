"""The section ``service`` of the settings: the REST service."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import Field, field_validator

from gpu_platform.domain.jobs.resources import Strategy
from gpu_platform.domain.jobs.spec import MAX_RETRY_WAIT_S, MAX_TIME_LIMIT_S
from gpu_platform.domain.jobs.upload_limits import MAX_UPLOAD_MIB
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.settings.section import Section

Priority = Annotated[Annotated[int, Field(ge=-1000, le=1000)] | str, Field(union_mode="left_to_right")]
"""A number, or a level of ``access.priorities``. A number in a variable of the environment is a number."""


class KindDefaults(Section):
    """What jobs of one kind of work get that do not give their own."""

    strategy: Strategy | None = None
    """``pack``: fill hosts that already work; ``spread``: prefer the emptiest hosts. None: pack."""
    priority: Priority | None = None
    """A level of ``access.priorities``, or a number. A job gets at most what its user may give it
    (``access.max_priority``). None: as jobs of no kind, ``service.job_defaults.priority``."""


class TrainingDefaults(KindDefaults):
    """Training: gangs need whole hosts, so hosts are filled."""

    strategy: Strategy | None = Strategy.PACK
    priority: Priority | None = 0


class InferenceDefaults(KindDefaults):
    """Inference: what answers users should survive the loss of one host, and not wait behind training."""

    strategy: Strategy | None = Strategy.SPREAD
    priority: Priority | None = 100


class BatchDefaults(KindDefaults):
    """Batch: nobody waits for the end, so all others go first."""

    strategy: Strategy | None = Strategy.PACK
    priority: Priority | None = -100


class InteractiveDefaults(KindDefaults):
    """Interactive: somebody sits and waits for the start."""

    strategy: Strategy | None = Strategy.PACK
    priority: Priority | None = 100


class KindsOfWork(Section):
    """Values for jobs that name a kind of work, by kind."""

    training: TrainingDefaults = TrainingDefaults()
    inference: InferenceDefaults = InferenceDefaults()
    batch: BatchDefaults = BatchDefaults()
    interactive: InteractiveDefaults = InteractiveDefaults()

    def of(self, kind: WorkKind) -> KindDefaults:
        """The values of one kind."""
        return {
            WorkKind.TRAINING: self.training,
            WorkKind.INFERENCE: self.inference,
            WorkKind.BATCH: self.batch,
            WorkKind.INTERACTIVE: self.interactive,
        }[kind]


class JobDefaults(Section):
    """Values for jobs that do not give their own."""

    kind: WorkKind | None = None
    """The kind of work of jobs that name none. None: they have none, and so neither its strategy nor its priority."""
    kinds: KindsOfWork = KindsOfWork()
    priority: Priority | None = None
    """Priority of jobs that have no kind, or whose kind gives none: a level of ``access.priorities``, or a number. A
    job gets at most what its user may give it (``access.max_priority``). None: 0."""
    time_limit_s: Annotated[int, Field(ge=1, le=MAX_TIME_LIMIT_S)] | None = None
    """Time limit of each attempt. A job gets at most what its namespace allows (``max_job_duration_s`` of its quota),
    and a job with a deadline gets none. ``time_limit_s: null`` in a job file or over REST asks for no limit. None: no
    limit."""
    max_retries: Annotated[int, Field(ge=0, le=100)] | None = None
    """Attempts after a failure of the user's program. None: the platform's own default."""
    max_hardware_retries: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Attempts after GPU faults and lost hosts."""
    retry_wait_s: Annotated[float, Field(ge=1, le=MAX_RETRY_WAIT_S)] | None = None
    """Wait before the first attempt after a failure of the user's program. Each further wait is twice as long."""
    retry_longest_wait_s: Annotated[float, Field(ge=1, le=MAX_RETRY_WAIT_S)] | None = None
    """The longest of these waits."""
    checkpoint_every_s: Annotated[int, Field(ge=1)] | None = None
    """The interval at which programs are asked for a checkpoint."""
    checkpoint_keep: Annotated[int, Field(ge=1)] | None = None
    """How many of the newest complete checkpoints are kept; older ones are removed, even without a manifest."""

    def priority_of(self, of_kind: KindDefaults) -> int | str | None:
        """The priority of jobs with these values of their kind. None: the cluster gives none."""
        return self.priority if of_kind.priority is None else of_kind.priority

    def levels(self) -> dict[str, int | str | None]:
        """Each priority in this section, by the name of its setting."""
        found = {f"kinds.{kind}.priority": self.kinds.of(kind).priority for kind in WorkKind}
        return {"priority": self.priority, **found}


class RateLimit(Section):
    """A token bucket: ``burst`` requests at once, then ``per_s`` a second."""

    per_s: Annotated[float, Field(ge=0.01)]
    """Requests a second, on average."""
    burst: Annotated[int, Field(ge=1)]
    """Requests at once, after a pause."""


class RateLimitSettings(Section):
    """How often one caller may ask the service; null: as often as it likes. Each service process counts for itself:
    with two of them behind a proxy, a caller may send up to twice as much."""

    requests: RateLimit | None = RateLimit(per_s=100.0, burst=1000)
    """All requests but the reports of hosts. Clients wait as long as the answer 429 says, and try again."""
    planning: RateLimit | None = RateLimit(per_s=5.0, burst=50)
    """Dry runs, reasons and snapshots, which cost the service up to a second each; and metrics, which cost hosts."""
    releases: RateLimit | None = RateLimit(per_s=0.5, burst=30)
    """Jobs that hold GPUs, stopped by who submitted them. It is never refused to stop one; who stops more waits with
    the next submission, since each time a place is found, a host starts ranks and ends them, and others wait."""
    at_once: Annotated[int, Field(ge=1)] | None = 256
    """Requests that last: streams of events, logs and commands, and those that wait for the end of a job. Each holds a
    connection."""
    bad_tokens: RateLimit | None = RateLimit(per_s=5.0, burst=100)
    """Requests without a valid token, of one address. Valid tokens are not held up, also from the same address."""


class UploadSettings(Section):
    """Code that people upload with their jobs (``submit --upload``). It is in the database."""

    max_mib: Annotated[int, Field(ge=1, le=MAX_UPLOAD_MIB)] = 100
    """The largest archive. Code is small: data belongs on a file system of the hosts."""
    namespace_mib: Annotated[int, Field(ge=1)] = 10_240
    """All archives of one namespace together. They are removed some time after the jobs that use them
    (``scheduler.upload_keep_days``)."""


class ServiceSettings(Section):
    """The REST service."""

    host: str = "127.0.0.1"
    """Address on which the service listens. Tokens travel in clear over plain HTTP: keep it private, or use TLS."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """Port of the REST API."""
    job_defaults: JobDefaults = JobDefaults()
    """Values for jobs that do not give their own."""
    insecure_http: bool = False
    """true: the service may listen outside the loopback without TLS. Only where the network itself is private and
    encrypted: whoever reads it can act as any user and any host."""
    allowed_hosts: list[str] = []
    """More host names under which clients reach the service, besides this machine's own (also in ``/etc/hosts``),
    ``localhost``, ``service.host``, ``tls.names`` and those in ``api_url`` and ``api_urls``; ``.example.org`` means all
    names below it. Requests for other names get 421, as they may come from a web page that let its name point here.
    Addresses are always allowed, and so are machines that show their certificate or node token."""
    trusted_proxies: list[str] = []
    """Addresses or networks of reverse proxies whose header ``X-Forwarded-For`` says where a request comes from, for
    the audit log and the limits of who has not signed in. The header of anybody else is ignored. Name no network in
    which clients are, too: whoever is in it may claim any address."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of gRPC, with the same address, certificate and rules as REST, e.g. 8701. None: no gRPC."""
    rate_limits: RateLimitSettings = RateLimitSettings()
    """How often one caller may ask. Who has not signed in is one caller with all of their IPv4 address, or of the IPv6
    network of 64 bits."""
    uploads: UploadSettings = UploadSettings()
    """Code that people upload with their jobs."""
    prometheus_url: str | None = None
    """Base address of a Prometheus that scrapes the node workers, for links in the answers about metrics, e.g.
    ``http://prometheus:9090``."""

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, value: list[str]) -> list[str]:
        for one in value:
            try:
                ipaddress.ip_network(one)
            except ValueError as error:
                raise ValueError(
                    f"service.trusted_proxies: {one!r} is no address or network ({error}): name the proxies, since "
                    "whoever is trusted here may claim any address"
                ) from None
        return value
