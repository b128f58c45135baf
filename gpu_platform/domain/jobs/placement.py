"""The scheduler's answer: a placement for the gang, or the reason why there is none."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from gpu_platform.domain.hosts.share import ShareGrant


class TopologyLevel(StrEnum):
    """How close a gang's GPUs are, best first. The level of a set is that of its worst pair."""

    NVLINK_NUMA = "nvlink_numa"
    """NVLink between all pairs (or a connected NVLink ring), all in one NUMA node."""
    NVLINK = "nvlink"
    """An NVLink ring through all of them, on any sockets of one host."""
    NUMA = "numa"
    SOCKET = "socket"
    HOST = "host"
    """One host, across sockets; only with ``allow_cross_numa``."""
    NVLINK_DOMAIN = "nvlink_domain"
    """Several hosts that one NVLink domain joins (NVL72 racks)."""
    LEAF = "leaf"
    SPINE = "spine"
    ANY = "any"


class HostSlice(BaseModel):
    """The GPUs of one host that a gang gets, in rank order."""

    model_config = ConfigDict(frozen=True)

    host: str
    gpu_uuids: list[str]
    gpu_indices: list[int]
    shares: list[ShareGrant] = []
    """The share of each GPU, in the order of the GPUs. Empty: all GPUs are held whole."""
    cpus: int = 0
    """CPUs of the host that nobody else gets."""
    ram_mib: int = 0
    """Memory of the host that nobody else gets."""
    group: str | None = None
    """The rank group of this slice, in a gang of several groups."""


class ScoreRow(BaseModel):
    """The score of one candidate."""

    model_config = ConfigDict(frozen=True)

    candidate: str
    """A host. For a gang: the domain that its hosts were taken from, e.g. ``leaf l7``."""
    total: float
    parts: dict[str, float] = {}
    """Score -> value (0 to 1) times weight. They add up to ``total``."""


class ScoreTable(BaseModel):
    """Scores of the candidates: the winner first, then the next ones. Equal totals are sorted by name."""

    model_config = ConfigDict(frozen=True)

    rows: list[ScoreRow] = []
    others: int = 0
    """How many candidates are not shown."""


class Placement(BaseModel):
    """The scheduler's proposal for a gang. It holds nothing until ``reserve`` has committed it."""

    model_config = ConfigDict(frozen=True)

    slices: list[HostSlice]
    level: TopologyLevel
    bandwidth_gb_s: float
    """Expected bus bandwidth of the slowest link of the best ring, GB/s, one direction."""
    score: float
    why: str
    """One sentence for people, e.g.
    ``4 GPUs in one NVLink ring (18 links) on one NUMA node of dgx-a; best connected, then best packed,
    of 3 hosts that fit``.
    """
    scores: ScoreTable = ScoreTable()
    """The winner and the runners-up."""
    epoch: int = 0
    """The leader's fencing token."""
    decided_in_ms: float = 0.0

    @property
    def gpu_uuids(self) -> list[str]:
        """All GPUs of the gang, in rank order."""
        return [uuid for part in self.slices for uuid in part.gpu_uuids]

    def gpu_uuids_on(self, host: str) -> list[str]:
        """The GPUs of the gang on one host."""
        return [uuid for part in self.slices if part.host == host for uuid in part.gpu_uuids]

    @property
    def hosts(self) -> list[str]:
        """The hosts, each once, that of rank 0 first."""
        return list(dict.fromkeys(part.host for part in self.slices))


class ReasonCode(StrEnum):
    """Why a host cannot take a job. Ordered as the filters run."""

    HOST_NOT_READY = "host_not_ready"
    EXCLUDED = "excluded"
    """The job's earlier attempt failed there."""
    HOST_NAME = "host_name"
    """The job says by name which hosts it takes, and not this one."""
    RESERVATION = "reservation"
    """The host does not belong to the advance reservation for which the job asks."""
    LABEL = "label"
    """The host's labels do not meet the job's constraints."""
    OTHER_MODEL = "other_model"
    TOO_LITTLE_MEMORY = "too_little_memory"
    COMPUTE_CAPABILITY = "compute_capability"
    NO_CUDA = "no_cuda"
    """The host does not have the CUDA version that was asked for."""
    NOT_ISOLATED = "not_isolated"
    """Ranks are plain processes there, and the job requires isolation."""
    SHARING_UNSUPPORTED = "sharing_unsupported"
    """Its GPUs have no such MIG profile, or it shares GPUs in another way."""
    TOO_FEW_GPUS = "too_few_gpus"
    """The host never had enough matching GPUs."""
    CPUS = "cpus"
    """The host has too few CPUs, or too few that no job holds."""
    RAM = "ram"
    """The host has too little memory, or too little that no job holds."""
    UNHEALTHY = "unhealthy"
    """Enough GPUs, but too many are DEGRADED, RESETTING or OFFLINE."""
    TOO_HOT = "too_hot"
    """Enough healthy GPUs, but too many are above the temperature limit."""
    WINDOW = "window"
    """A window keeps the GPUs, and the job might still run in it; or the advance reservation for which the job asks
    is not open to it."""
    BUSY = "busy"
    """Enough healthy GPUs, but other jobs hold them."""
    SHARED_BY_ANOTHER = "shared_by_another"
    """The GPUs that have enough left are shared by another namespace, or in another mode."""
    TOO_LITTLE_SHARE = "too_little_share"
    """Shared GPUs have too little left: of SMs, memory or MIG slices."""
    TOPOLOGY = "topology"
    """Enough free GPUs, but not on one socket or NVLink island."""
    KEPT = "kept"
    """It fits, but the host is kept for a job ahead in the queue."""
    FILTER = "filter"
    """A filter of another package: see ``HostCount.filter``."""


class HostCount(BaseModel):
    """``hosts`` hosts cannot take the job because of ``code``; ``available`` is the best of them."""

    model_config = ConfigDict(frozen=True)

    code: ReasonCode
    hosts: int
    asked: str
    available: str
    filter: str | None = None
    """The filter plugin's name, where ``code`` is ``filter``."""


class WaitCode(StrEnum):
    """Why a job waits, in one word: the label of metrics and of lists."""

    WAITING_FOR_GPUS = "waiting_for_gpus"
    """Running jobs must end, or GPUs and hosts come back."""
    BEHIND_HIGHER_PRIORITY = "behind_higher_priority"
    """It would fit, but what it would take is kept for a job ahead."""
    NO_HOSTS = "no_hosts"
    NEVER_FITS = "never_fits"
    """It would not even fit on the empty, healthy cluster."""
    OVER_QUOTA = "over_quota"
    WINDOW = "window"
    """A maintenance window or an advance reservation keeps what the job could use, or the advance reservation for which
    it asks is not open to it."""
    DEPENDENCY = "dependency"
    """Other jobs must end first."""
    HELD = "held"
    """Somebody holds it, or a job that it comes after ended otherwise than it asks for: it waits to be released."""


class BlockingJob(BaseModel):
    """A job that has GPUs which a waiting job needs."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    attempt: int
    gpus: int
    """How many GPUs it holds of those that the waiting job needs."""
    hosts: list[str]
    ends_by: float | None = None
    """When its time limit ends it, Unix seconds. None if it has no time limit."""


class EstimateBasis(StrEnum):
    """The basis of an estimated start, or the reason why there is none."""

    PROMISED = "promised"
    """The estimate is the start of a planned reservation: see ``Reason.starts_by``."""
    TIME_LIMITS = "time_limits"
    """The estimate supposes that running jobs and jobs ahead all run to their time limits, and that no new job comes
    in before it."""
    RUN_TIMES = "run_times"
    """As ``time_limits``, but jobs run as long as earlier ones of their kind did, where that is known."""
    NO_TIME_LIMIT = "no_time_limit"
    """No estimate: it depends on jobs that have no time limit, and of which nothing was learned."""
    REPAIR = "repair"
    """No estimate: hosts or GPUs must come back first, or hosts must be added."""
    QUOTA = "quota"
    """No estimate: it depends on what its namespace or user holds."""
    WINDOW = "window"
    """No estimate: nobody knows when windows leave it enough, or the advance reservation for which it asks will not be
    open to it."""
    ALONE = "alone"
    """As ``time_limits``, but jobs ahead in the queue are not counted."""
    PARTS = "parts"
    """No estimate in the queue: gangs of several groups and shares of GPUs, CPUs and memory are estimated only by a
    dry run."""
    PREEMPTING = "making_room"
    """It starts when the jobs that are preempted for it have ended, at the latest after their grace."""
    TOO_FAR = "too_far"
    """No estimate: too many jobs are ahead."""


class PromisedHost(BaseModel):
    """GPUs of one host that are set aside for a promised start."""

    model_config = ConfigDict(frozen=True)

    host: str
    gpu_indices: list[int]
    """Indices in the host's inventory."""


class Reason(BaseModel):
    """Why a job waits. The same data is in API, CLI and metric labels.

    Jobs that ask for the same share one reason. Its dates are those of the first of these jobs, ``first_job``. The jobs
    behind it start no earlier.
    """

    model_config = ConfigDict(frozen=True)

    code: WaitCode
    message: str
    counts: list[HostCount] = []
    next_step: str = ""
    """What would let the job start."""
    holders: list[BlockingJob] = []
    """Jobs that block it: without them it would start, if no new job came in before it. At most 5, those that end
    first."""
    more_holders: int = 0
    """How many more jobs block it."""
    starts_by: float | None = None
    """The promised start, Unix seconds. It holds if running jobs keep their time limits and hosts stay healthy."""
    promised_hosts: list[PromisedHost] = []
    """Where it was promised to start. Empty if the place is chosen at the start (backfill ``easy``)."""
    estimated_start: float | None = None
    """The probable start, Unix seconds. It is not promised; see ``estimate``."""
    estimate: EstimateBasis | None = None
    """How the start was estimated. None: the scheduler has not looked yet."""
    estimated_between: tuple[float, float] | None = None
    """Between these times, Unix seconds, 80 % of the jobs start that were told such an estimate. Only with
    ``run_times``."""
    first_job: str | None = None
    position: int | None = None
    """Place in the queue, 1 is next."""

    def for_job(self, job_id: str, position: int | None) -> Reason:
        """The reason as one job shows it. A start that is promised to the first job is not promised to those behind
        it."""
        if self.first_job in (None, job_id):
            return self.model_copy(update={"position": position})
        not_theirs = {EstimateBasis.PROMISED: EstimateBasis.TIME_LIMITS, EstimateBasis.PREEMPTING: None}
        basis = None if self.estimate is None else not_theirs.get(self.estimate, self.estimate)
        update = {"position": position, "starts_by": None, "estimate": basis, "estimated_between": None}
        return self.model_copy(update=update)

    def as_told(self, promised: float | None, now: float, silent_since: float | None = None) -> Reason:
        """The reason of one job as it may be shown at ``now``, without dates that have passed.

        ``promised``: what the leader promised to this job. ``silent_since``: since when no scheduler decides; None: one
        does.
        """
        update: dict[str, object] = {"starts_by": promised}
        has_passed = promised is not None and promised < now
        basis, estimated = self.estimate, self.estimated_start
        if has_passed or promised is None:
            update["starts_by"] = None
            basis = EstimateBasis.TIME_LIMITS if basis is EstimateBasis.PROMISED else basis
        elif basis is not EstimateBasis.PREEMPTING and not (basis is EstimateBasis.RUN_TIMES and estimated):
            basis, estimated = EstimateBasis.PROMISED, promised
        if estimated is not None and (estimated < now or (has_passed and estimated == promised)):
            estimated = None
            basis = None if basis in (EstimateBasis.TIME_LIMITS, EstimateBasis.RUN_TIMES) else basis
        between = self.estimated_between if estimated is not None and basis is EstimateBasis.RUN_TIMES else None
        if between is not None:
            between = max(between[0], now), min(between[1], math.inf if promised is None else promised)
        update |= {"estimate": basis, "estimated_start": estimated, "estimated_between": between}
        if silent_since is not None:
            when = f"{datetime.fromtimestamp(silent_since, UTC):%Y-%m-%d %H:%M:%S} UTC"
            update["next_step"] = f"no scheduler decides since {when}: jobs start, and get dates, once one does"
        elif has_passed:
            update["next_step"] = "its promised start has passed: the scheduler is about to say what follows"
        return self.model_copy(update=update)
