"""Configuration: defaults, then a YAML file, then ``GPU_PLATFORM_…`` variables.

The file is named by ``GPU_PLATFORM_CONFIG`` or is ``gpu-platform.yaml`` in the working
directory. Nested values use two underscores: ``GPU_PLATFORM_NODE__NAME=dgx-a``.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from gpu_platform.access_settings import AccessSettings
from gpu_platform.alerting.settings import AlertSettings
from gpu_platform.cluster_settings import ClusterSettings
from gpu_platform.domain.hosts.lease_protocol import RESTART_LEASE_S
from gpu_platform.domain.hosts.remediation import BackOff, RemediationPolicy, RepairStep
from gpu_platform.environment_settings import EnvironmentSettings
from gpu_platform.identity.settings import TlsSettings
from gpu_platform.jail_settings import JailSettings
from gpu_platform.network_settings import NetworkSettings
from gpu_platform.notifications.settings import NotificationSettings
from gpu_platform.service_settings import JobDefaults as JobDefaults
from gpu_platform.service_settings import RateLimit as RateLimit
from gpu_platform.service_settings import RateLimitSettings as RateLimitSettings
from gpu_platform.service_settings import ServiceSettings
from gpu_platform.setting_types import ApiUrl, LogLevel, MetricsPort
from gpu_platform.temporal_settings import GatewaySettings as GatewaySettings
from gpu_platform.temporal_settings import TemporalSettings as TemporalSettings
from gpu_platform.tracing_settings import TracingSettings


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ControlSettings(_Section):
    """The control worker."""

    metrics_port: MetricsPort = 8703
    """Port of its ``/metrics``, see ``metrics_host``."""


class SchedulerSettings(_Section):
    """The scheduler."""

    poll_ms: Annotated[float, Field(gt=0)] = 5.0
    """How often the scheduler reads the change feed, milliseconds."""
    leader_heartbeat_timeout_s: float = 4.0
    """A leader that is silent for longer is replaced."""
    policy: dict[str, Any] = {}
    """How jobs are ordered and placed, quotas and the fabric: the fields of a policy file, see ``scheduler.policy``
    below. ``kill -HUP`` makes the scheduler read them again."""
    retention_days: Annotated[float, Field(ge=1)] | None = 90.0
    """Reservations, idempotency keys and fault ids of jobs that ended longer ago are deleted, but not what fair share
    still counts (eight half-lives); None: never."""
    job_keep_days: Annotated[float, Field(ge=7)] | None = 365.0
    """Jobs, arrays and pipelines that ended longer ago are moved out of the database, into files of ``job_archive``;
    None: never. A job whose reservation is kept (``retention_days``), or that something else names, stays longer."""
    job_archive: Path | None = None
    """Directory for ended jobs, best one that all schedulers share; None: ``<state_dir>/archive``."""
    event_keep_days: Annotated[float, Field(ge=7)] | None = 400.0
    """Older events are deleted; None: never. Longer than ``job_keep_days``: the archive has the events of its jobs."""
    usage_keep_days: Annotated[float, Field(ge=7)] | None = 400.0
    """Usage that is older is deleted, if its jobs are in the archive, which has it too; None: never. By default 13
    months: each month can be compared with the same one of the year before."""
    audit_keep_days: Annotated[float, Field(ge=1)] | None = None
    """Older records of the audit log are moved out of the database, into ``audit_archive``; None: never."""
    audit_archive: Path | None = None
    """Directory for old records of the audit log, best one that all schedulers share. Needed with
    ``audit_keep_days``."""
    upload_keep_days: Annotated[float, Field(ge=0.01)] | None = 1.0
    """Uploaded code that was not used for so long is removed, if no job, array, schedule or pipeline names it that may
    still run; None: never."""
    metrics_port: MetricsPort = 8702
    """Port of its ``/metrics``, see ``metrics_host``."""

    @model_validator(mode="after")
    def _archives_what_it_removes(self) -> Self:
        if self.audit_keep_days is not None and self.audit_archive is None:
            raise ValueError("audit_keep_days needs audit_archive, a directory: old records are moved there first")
        return self


class RemediationSettings(_Section):
    """How far the platform goes to bring broken GPUs back; read by control workers and the scheduler."""

    steps: list[RepairStep] = [RepairStep.HOST_RESET, RepairStep.REBOOT]
    """Steps that follow when a reset of the GPU alone did not help, in this order. A service case is always last."""
    approve: list[RepairStep] = [RepairStep.REBOOT]
    """Steps that wait until an operator runs ``gpu-platform remediation approve GPU``."""
    drain: Literal["wait", "preempt"] = "wait"
    """What happens to jobs on the host before such a step: ``wait`` until they end, or ``preempt`` them."""
    drain_timeout_s: Annotated[float, Field(gt=0)] = 86_400.0
    """If the host is not drained after this time, the step has failed."""
    reboot_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """If the host has not reported from a new boot after this time, the reboot has failed."""
    reboots_per_day: Annotated[int, Field(ge=0)] = 2
    """The most reboots of one host within 24 hours."""
    power_command: str | None = None
    """Run by a control worker when a host cannot reboot itself, with ``{host}`` replaced by its name, e.g.
    ``ipmitool -I lanplus -H {host}-bmc -U admin -f /etc/bmc chassis power cycle``."""
    flapping_window_h: Annotated[float, Field(gt=0)] = 24.0
    """A GPU or host that fails again within this time is in quarantine, each time for longer."""
    flapping_first_min: Annotated[float, Field(ge=0)] = 1.0
    """Minutes of quarantine, doubled with each failure: 2 after the second, 4 after the third; 0: no quarantine."""
    flapping_longest_min: Annotated[float, Field(gt=0)] = 240.0
    """The longest quarantine."""

    @property
    def back_off(self) -> BackOff:
        """The flapping settings as the time out after each failure."""
        return BackOff(
            window=timedelta(hours=self.flapping_window_h),
            first=timedelta(minutes=self.flapping_first_min),
            longest=timedelta(minutes=self.flapping_longest_min),
        )

    @property
    def policy(self) -> RemediationPolicy:
        """The settings that workflows need."""
        return RemediationPolicy(
            steps=self.steps,
            approve=self.approve,
            preempts=self.drain == "preempt",
            drain_timeout_s=self.drain_timeout_s,
            reboot_timeout_s=self.reboot_timeout_s,
            reboots_per_day=self.reboots_per_day,
            can_power_cycle=self.power_command is not None,
        )


class NodeSettings(EnvironmentSettings, JailSettings, _Section):
    """One host and its node worker."""

    name: str = Field(default_factory=lambda: socket.gethostname().split(".")[0])
    """The host's name in the cluster; default: this machine's."""
    address: str = "127.0.0.1"
    """Where other hosts' ranks and the service reach this host."""
    agent_port: Annotated[int, Field(ge=0, le=65535)] = 8701
    """HTTP port for logs and metrics of this host; 0: any free one. If it is taken, the node worker says so and takes a
    free one. It reports the port that it has to the service."""
    insecure_http: bool = False
    """true: the node worker may listen outside the loopback without TLS, see ``service.insecure_http``."""
    join_token: str | None = None
    """For the first certificate of this host: from ``gpu-platform hosts enroll``. Not needed once there is one."""
    join_token_file: Path | None = None
    """A file with the join token, instead of ``join_token``."""
    token: str | None = None
    """Without TLS: by this the node worker proves which host it is, also from ``gpu-platform hosts enroll``. A node
    worker with the service's own ``state_dir`` needs none."""
    token_file: Path | None = None
    """A file with the token, instead of ``token``."""
    gpus: bool = True
    """false: this host offers CPUs and memory only, and uses nothing from NVIDIA: no NVML, no ``nvidia-smi``, no
    device node, no search for CUDA, no MPS, no health threads."""
    simulate: str | None = None
    """The machine to simulate: a known type, e.g. ``dgx-h100``, or a YAML file. None: the real NVML."""
    leaf: str | None = None
    """Leaf switch above the host; gangs prefer hosts under one leaf."""
    spine: str | None = None
    """Spine above the leaf."""
    labels: dict[str, str] = {}
    """More about where the host is, e.g. ``{row: "7"}``. Fabric levels and failure domains can use these labels."""
    nvlink_domain: str | None = None
    """Name of the NVLink domain, the same on all hosts of the rack."""
    cuda_roots: list[Path] = []
    """More directories with CUDA installations, besides ``/usr/local/cuda*`` and ``/opt/cuda*``."""
    cuda_default: Literal["newest", "none"] = "newest"
    """For jobs with GPUs that ask for no CUDA version. ``newest``: ``CUDA_HOME`` is the newest installation that the
    driver can run, and ``PATH`` ends with it; ``LD_LIBRARY_PATH`` does not change, for programs with their own
    libraries. ``none``: nothing is set."""
    health_interval_s: Annotated[float, Field(gt=0)] = 0.1
    """How often each GPU is polled."""
    lease_interval_s: Annotated[float | None, Field(gt=0)] = None
    """How often the host reports; several reports must fit into ``lease_ttl_s``. None: as the service says, which is a
    fifth of the lease."""
    restart_lease_s: Annotated[float, Field(gt=0, le=3600)] = RESTART_LEASE_S
    """Length of the lease that a node worker asks for when it gets SIGTERM while ranks run. The next node worker must
    report within this time, or the ranks end."""
    advertised_url: str | None = None
    """Where other hosts and the service reach this node worker, if not at ``address`` and ``agent_port`` (a proxy)."""
    max_temperature_c: int = 85
    """A hotter GPU gets no new work until it has cooled to 5 degrees below this. The policy may set a lower limit."""
    reset_attempts: int = 3
    """A GPU goes OFFLINE after this many failed resets in a row."""
    reset_timeout_s: float = 60.0
    """A reset with ``nvidia-smi --gpu-reset`` that takes longer has failed."""
    reboot_command: str | None = None
    """How this host reboots itself when remediation asks for it, e.g. ``systemctl reboot``; None: it does not, see
    ``remediation.power_command``. Simulated hosts simulate it."""
    gpu_history_days: Annotated[int, Field(ge=1)] = 90
    """How long the host keeps the faults of its GPUs; older ones are removed when the node worker starts."""
    metrics_retention_days: Annotated[int, Field(ge=0)] | None = 30
    """How long the host keeps samples of its GPUs for ``gpu-platform metrics``, 0.12 MB a day for each GPU. 0 or None:
    it keeps none. Hosts of a fleet keep none."""
    fault_policy: str = "platform"
    """The fault policy: ``platform``, ``vendor``, or the path of a YAML file."""
    accounting_interval_s: Annotated[float, Field(gt=0)] = 2.0
    """How often CPU time and memory of ranks are read, and the usage of attempts is written to disk."""
    hang_limit_s: Annotated[int, Field(ge=1)] | None = None
    """Hang limit of jobs that have none: a job without a sign of work for this time is restarted; None: never."""
    hang_without_utilization: bool = False
    """Where NVML does not show a job's utilisation (MIG), judge by its processes and memory alone whether it hangs."""
    idle_limit_s: Annotated[int, Field(ge=1)] | None = None
    """Idle limit of jobs that have none: a job whose GPUs are idle for this time ends, and is warned at half of it;
    None: never."""
    time_limit_slack_s: Annotated[float, Field(ge=0)] = 15.0
    """How long after its time limit the host itself ends an attempt, if the control plane has not."""
    power_limit_w: Annotated[int, Field(ge=1)] | None = None
    """Power limit of each GPU of this host; None: its board's default. A job may ask for less."""
    checkpoint_root: Path | None = None
    """The checkpoint root, best on a file system that all hosts share; None: ``<state_dir>/checkpoints``."""
    checkpoint_every_s: Annotated[int, Field(ge=1)] | None = None
    """Interval at which programs are asked for a checkpoint, for jobs that give none; None: not at an interval."""
    checkpoint_signal: Literal["USR1", "USR2", "HUP", "none"] = "USR2"
    """The signal that goes with a request, to processes that handle it, of jobs that give an interval or a signal. It
    differs from the default of ``warn_signal``, so that a program can tell them apart."""
    checkpoint_keep: Annotated[int, Field(ge=1)] = 2
    """How many of the newest complete checkpoints stay, for jobs that do not say. Older ones are removed if they have a
    manifest (``gpu_platform.job`` writes it), or if the job itself says how many to keep."""
    checkpoint_surplus_s: Annotated[float, Field(ge=0)] = 600.0
    """How long older checkpoints stay after they were written."""
    checkpoint_hash_mib: Annotated[int, Field(ge=0)] = 2048
    """Before an attempt resumes from a checkpoint of at most this size, its hashes are verified. For a larger one
    only the sizes of all files are."""
    checkpoint_check_s: Annotated[float, Field(gt=0, le=100)] = 90.0
    """How long, and with how many CPU seconds, a host verifies checkpoints before an attempt resumes or a list is
    answered. A launch that needs more fails."""
    isolation: Literal["auto", "plain", "required"] = "auto"
    """``auto``: ranks are jailed by the kernel where this host can do it (root, cgroups, bubblewrap), else they are
    plain processes, and plain on simulated hosts; ``required``: jailed, or the node worker does not start."""
    writable_paths: list[Path] = []
    """What jailed ranks may write besides their working and checkpoint directories, e.g. a scratch file system."""
    workdirs: list[str] = ["~", "/home", "/scratch", "/data"]
    """Jailed ranks may have their working directory in or below these; ``~`` is the home of the user's own account
    (``node.users``). What the rank's account may not enter or write there, it cannot. Directories of the system, of
    root and of the platform are refused, whatever this says."""
    exclusive_process: bool = True
    """A GPU that is not shared takes one process at a time (compute mode EXCLUSIVE_PROCESS), unless the job has more
    ranks than GPUs; false: any number of processes."""
    time_slice: Literal["default", "short", "medium", "long"] = "default"
    """Length of the time slices of jobs that share a GPU that way (``nvidia-smi compute-policy``)."""
    log_file_bytes: Annotated[int, Field(ge=4096)] = 64 << 20
    """Size of one file of a rank's log; then a new file begins."""
    log_files: Annotated[int, Field(ge=2)] = 4
    """How many files of each rank's log are kept; the oldest are removed."""
    disk_reserve_mib: Annotated[int, Field(ge=0)] | None = None
    """Free space on the disk of ``state_dir`` below which this host starts nothing new, so that what runs can write its
    records; None: 5 % of the disk, at most 1024."""
    log_keep_days: Annotated[float, Field(gt=0)] = 14.0
    """Logs of attempts that ended longer ago are removed."""
    log_keep_mib: Annotated[int, Field(ge=1)] = 20_480
    """The most space for logs of ended attempts on this host. The oldest are removed first."""
    record_keep_hours: Annotated[float, Field(ge=5)] = 24.0
    """Records of attempts that ended longer ago are removed from the host, except for their logs. Choose it longer than
    Temporal is ever away: steps that Temporal repeats are answered from these records. A signed launch is good for 2.25
    hours, and these records are why nobody can use it twice."""
    scrub: Literal["never", "between_namespaces", "always"] = "between_namespaces"
    """When a GPU's memory is overwritten and verified: ``always`` after each job, ``between_namespaces`` before the
    first job of another namespace, or ``never``."""
    scrub_namespaces: dict[str, Literal["never", "between_namespaces", "always"]] = {}
    """The same for the data of single namespaces, e.g. ``{medical: always}``."""
    scrub_timeout_s: float = 120.0
    """A scrub that takes longer has failed. Overwriting takes seconds; reading back takes most of the time."""
    scrub_verify_every: Annotated[int, Field(ge=1)] = 1
    """How much is read back after a scrub: 1: every window of 32 MiB, 16: one window in sixteen."""
    network: NetworkSettings = NetworkSettings()
    order_keys: Path | None = None
    """File with the public keys of control workers: this host carries out only orders that are signed with one of
    them. None: it carries out every order that comes through Temporal."""
    require_signed_orders: bool = True
    """With ``order_keys``: false carries out unsigned orders, too, until the steps that were ordered before control
    workers had a signing key have ended."""
    users: dict[str, str] = {}
    """Submitting user -> local account that the user's jailed ranks run as, e.g. ``{alice: alice}``. The ranks of each
    job of any other user run as an account of the job's own, out of ``attempt_uids``. Never root. ``*``, for all users,
    is ignored: it would let jobs of different users reach each other."""
    attempt_uids: str = "1879048192-2147352575"
    """The user and group ids (first-last) of the accounts that jobs get when their user has none. Nobody else may use
    them. The same on all hosts, so that the hosts of a gang can write into one checkpoint directory."""

    @field_validator("attempt_uids")
    @classmethod
    def _is_a_range(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if not (first.isdecimal() and last.isdecimal() and _FIRST_UID <= int(first) < int(last) <= _LAST_UID):
            raise ValueError(
                f"{value!r} is no range of ids: write first-last, from {_FIRST_UID} to {_LAST_UID}, e.g. 200000-265535"
            )
        return value

    @property
    def attempt_uid_range(self) -> range:
        """``attempt_uids`` as numbers."""
        first, _, last = self.attempt_uids.partition("-")
        return range(int(first), int(last) + 1)


_FIRST_UID, _LAST_UID = 65_536, 4_294_967_293


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
