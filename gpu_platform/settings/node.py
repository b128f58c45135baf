"""The section ``node`` of the settings: one host and its node worker."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gpu_platform.domain.hosts.lease_protocol import RESTART_LEASE_S
from gpu_platform.domain.hosts.network import parse_target
from gpu_platform.settings.section import Section

_REGISTRY = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9._-]+)*$"
_FIRST_UID, _LAST_UID = 65_536, 4_294_967_293


class NetworkSettings(Section):
    """The network of jailed ranks on one host."""

    mode: Literal["auto", "isolated", "host"] = "auto"
    """``isolated``: each attempt has a network namespace of its own, or the node worker does not start. ``host``: ranks
    use the host's network; the host says so in its missing guarantees. ``auto``: isolated where this host can do it; a
    gang with a host that cannot uses the network of its hosts."""
    allow: list[str] = ["internet"]
    """What isolated ranks reach besides their gang: ``internet`` (every public address), and addresses, networks and
    names, with ports or without, e.g. ``10.0.0.0/8:2049`` or ``pypi.example:443``. An address of this host or of the
    platform opens only by an entry with that one address and its ports. Empty: nothing."""
    dns: list[str] | None = None
    """Name servers of isolated ranks (IPv4); None: those of ``/etc/resolv.conf``, or of systemd-resolved behind it."""
    subnet: str = "198.18.0.0/15"
    """Addresses of isolated ranks, the same on all hosts: the first half is for links to the host, the second for
    links within gangs. Nothing else that ranks reach may be in it."""
    gang_port: Annotated[int, Field(ge=1, le=65535)] = 8474
    """UDP port between hosts for the networks of gangs (VXLAN), the same on all hosts. Firewalls between them must let
    it pass. A host takes there only what comes from the hosts of its own gangs."""
    connections: Annotated[int, Field(ge=64, le=1_000_000)] | None = None
    """How many connections an isolated attempt may have on this host at once, besides those in its gang. A tenth of it
    may begin each second. None: a 32nd of ``net.netfilter.nf_conntrack_max``, from 1024 to 4096."""

    @field_validator("allow")
    @classmethod
    def _check_targets(cls, entries: list[str]) -> list[str]:
        for entry in entries:
            parse_target(entry)
        return entries

    @field_validator("subnet")
    @classmethod
    def _check_subnet(cls, subnet: str) -> str:
        if not 8 <= IPv4Network(subnet).prefixlen <= 22:
            raise ValueError(f"{subnet} must have a prefix from /8 to /22")
        return subnet

    @field_validator("dns")
    @classmethod
    def _check_dns(cls, servers: list[str] | None) -> list[str] | None:
        return servers and [str(IPv4Address(server)) for server in servers]


class NodeSettings(Section):
    """One host and its node worker."""

    name: str = Field(default_factory=lambda: socket.gethostname().split(".")[0])
    """The host's name in the cluster; default: this machine's."""
    address: str = "127.0.0.1"
    """Where other hosts' ranks and the service reach this host."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8701
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
    """Where other hosts and the service reach this node worker, if not at ``address`` and ``port`` (a proxy)."""
    max_temperature_c: int = 85
    """A hotter GPU gets no new work until it has cooled to 5 degrees below this. The policy may set a lower limit."""
    reset_attempts: int = 3
    """A GPU goes OFFLINE after this many failed resets in a row."""
    reset_timeout_s: float = 60.0
    """A reset with ``nvidia-smi --gpu-reset`` that takes longer has failed."""
    reboot_command: str | None = None
    """How this host reboots itself when remediation asks for it, e.g. ``systemctl reboot``; None: it does not, see
    ``remediation.power_command``. Simulated hosts simulate it."""
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
    rank_pids_max: Annotated[int, Field(ge=16)] = 16_384
    """Tasks (processes and threads) of one jailed rank."""
    attempt_pids_max: Annotated[int, Field(ge=16)] | None = None
    """Tasks of all jailed ranks of an attempt on this host; None: half of ``pids_max``."""
    pids_max: Annotated[int, Field(ge=64)] | None = None
    """Tasks of all jailed ranks of this host; None: half of what its kernel allows (``kernel.pid_max``,
    ``kernel.threads-max``)."""
    rank_memory_mib: Annotated[int, Field(ge=16)] | None = None
    """Memory of one jailed rank, with its files in ``/tmp`` and ``/dev/shm``; None: what its attempt may use."""
    attempt_memory_mib: Annotated[int, Field(ge=16)] | None = None
    """Memory of all jailed ranks of an attempt on this host, for jobs that do not say; None: all but
    ``host_reserve_mib``."""
    host_reserve_mib: Annotated[int, Field(ge=0)] | None = None
    """Memory that all jailed ranks of this host together leave free; None: 5 % of the host's."""
    cpu_weight: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Weight of all jailed ranks together when CPUs are short, against other services of the host, which have 100.
    Between attempts the weight follows their GPUs."""
    io_weight: Annotated[int, Field(ge=1, le=10_000)] = 100
    """The same for local disks, where the kernel can weigh them (BFQ or its I/O cost model)."""
    attempt_io_mib_s: Annotated[int, Field(ge=1)] | None = None
    """The most MiB/s that an attempt reads from each local disk, and that it writes to it; None: no limit."""
    rank_tmp_mib: Annotated[int, Field(ge=1)] = 8_192
    """Size of a jailed attempt's private ``/tmp``."""
    rank_tmp_files: Annotated[int, Field(ge=16)] | None = 1_000_000
    """The most files in each of a jailed attempt's ``/tmp``, ``/var/tmp`` and ``/dev/shm``; None: the kernel's default
    (one for every two pages of memory)."""
    rank_shm_mib: Annotated[int, Field(ge=1)] | None = None
    """Size of a jailed attempt's ``/dev/shm``; None: half of the host's memory. What is in it counts as memory."""
    rank_memlock_mib: Annotated[int, Field(ge=0)] | None = None
    """Memory that each process of a jailed rank may lock (``ulimit -l``), as RDMA needs it; None: any amount."""
    rdma_management: bool = False
    """Jailed ranks also get the nodes for management datagrams of their RDMA cards (``umad``, ``issm``), for tools such
    as ``ibdiagnet``. Only where all users are trusted: these nodes can reconfigure the fabric."""
    artifact_root: Path | None = None
    """Directories that steps of pipelines hand to each other, on a file system that all hosts share; None:
    ``<state_dir>/artifacts``. The platform removes nothing there."""
    outputs_root: Path | None = None
    """Directories of outputs that jobs keep (``submit --outputs``), best on a file system that all hosts share; None:
    ``<state_dir>/outputs``. The platform removes nothing there."""
    module_init: Path | None = None
    """The file that defines the command ``module`` for bash, e.g. ``/usr/share/lmod/lmod/init/bash``; None: where Lmod
    and Environment Modules install it."""
    image_dir: Path | None = None
    """Where this host keeps the files of container images; None: ``<state_dir>/images``. Local, and large enough for
    all images that jobs use; the platform removes those that nobody used for ``image_keep_days``."""
    image_keep_days: Annotated[float, Field(gt=0)] = 14.0
    """Files of images that no job used for so long are removed."""
    image_registries: list[Annotated[str, Field(pattern=_REGISTRY)]] = [
        *("docker.io", "ghcr.io", "quay.io", "nvcr.io", "gcr.io", "public.ecr.aws", "registry.k8s.io"),
        *("mcr.microsoft.com", "registry.gitlab.com", "registry.access.redhat.com"),
    ]
    """Registries from which jobs get container images, ``HOST[:PORT][/REPOSITORY]``; the default are the well-known
    public ones. A pull reaches what ``network.allow`` has, whatever a registry or DNS answers. An address of this host
    is reached only if an entry here has that address. Images that the host has already need no entry."""
    image_max_gib: Annotated[float, Field(gt=0)] = 64.0
    """The largest container image, unpacked. A larger one is not kept, and its job fails."""
    image_max_files: Annotated[int, Field(gt=0)] = 2_000_000
    """The most files and directories of a container image. Each takes an inode of the disk."""
    image_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Getting an image from its registry and unpacking it that takes longer has failed."""
    container_mounts: list[Path] = []
    """Directories of the host that every container shows read-only, e.g. ``/opt/nvidia``, besides the working
    directory, checkpoints, outputs and code of the job."""

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
