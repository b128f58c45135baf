"""The settings of the scheduler, and the pipeline that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

from pydantic import PlainValidator

from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.quota import Quotas
from gpu_platform.domain.plugin import PluginFault
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import ChooseHosts, Framework, NamedFilter, Offers, Score
from gpu_platform.scheduling.plugins.closeness import BandwidthScore, TopologyScore
from gpu_platform.scheduling.plugins.exclusion import ExclusionFilter
from gpu_platform.scheduling.plugins.expected_tasks import ExpectedTasks
from gpu_platform.scheduling.plugins.facts import CudaFilter, GpuCountFilter, GpuFactFilter, IsolationFilter
from gpu_platform.scheduling.plugins.fragmentation import TYPICAL_SHARES, TYPICAL_SIZES, FragmentationScore
from gpu_platform.scheduling.plugins.gang import DOMAIN_WEIGHTS, DomainWeights, choose_hosts, rank_domains
from gpu_platform.scheduling.plugins.host_choice import HostNameFilter, LabelFilter
from gpu_platform.scheduling.plugins.live_load import (
    HistoryScore,
    RoundRobinScore,
    TemperatureFilter,
    ThermalScore,
    UtilisationScore,
)
from gpu_platform.scheduling.plugins.readiness import FreeGpuFilter, HealthyGpuFilter, HostReadyFilter
from gpu_platform.scheduling.plugins.sharing import (
    HostCapacityFilter,
    SameTenantFilter,
    ShareCapacityFilter,
    SharingSupportedFilter,
)
from gpu_platform.scheduling.plugins.stranding import TypicalTask
from gpu_platform.scheduling.plugins.strategy import ResourcesScore, StrategyScore
from gpu_platform.scheduling.plugins.windows import ReservationFilter, WindowFilter
from gpu_platform.scheduling.queueing.queue_order import (
    AGE,
    SHARE,
    OrderFactor,
    QueueOrder,
    queue_order,
    shipped_factors,
)
from gpu_platform.topology.fabric import FabricConfig

TIGHTEST_FIT: Mapping[str, float] = {"topology": 20.0, "bandwidth": 2.0, "strategy": 1.0, "history": 0.25}
"""One step between topology levels (0.2 x 20) counts more than all that is below it. ``history`` counts a quarter of
``strategy``, as in the score of a domain (0.1 to 0.4 for resources). Scores without a weight are not computed."""

DEFAULT_WEIGHTS: Mapping[str, float] = {**TIGHTEST_FIT, "strategy": 0.0, "fragmentation": 1.0, "islands": 1.0}
"""The same, but the mix of tasks decides which hosts are filled first."""

WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "default": DEFAULT_WEIGHTS,
    "tightest_fit": TIGHTEST_FIT,
    "fragmentation": {"fragmentation": 100.0, "topology": 1.0, "bandwidth": 0.1, "strategy": 0.5},
    "least_loaded": {"topology": 20.0, "bandwidth": 2.0, "strategy": 0.1, "utilisation": 4.0},
    "round_robin": {"topology": 20.0, "bandwidth": 2.0, "strategy": 0.0, "round_robin": 1.0},
    "thermal": {"topology": 20.0, "bandwidth": 2.0, "strategy": 0.1, "thermal": 4.0},
}
"""Weights to start from, for ``Policy.weights``."""


NOT_WRITTEN = ("plugins", "site_filters", "site_binder", "order_plugins", "plugin_faults")
"""Fields of :class:`Policy` that a policy file does not have, because they follow from ``weights``, ``filters``,
``binder`` and ``order_weights``."""


@dataclass(frozen=True)
class MoveBudget:
    """Limits for one plan of moves."""

    jobs: int = 4
    """The most jobs that may be moved."""
    lost_gpu_s: float = 8 * 3600.0
    """The most work that may be lost: GPU-seconds since the last checkpoints of all moved jobs."""
    restart_s: float = 60.0
    """What a move costs each GPU of the moved job besides: the end, the start and the reading of the checkpoint."""
    per_job_hour: int = 1
    """How often a job may be moved within an hour."""


@dataclass(frozen=True)
class Policy:
    """All settings of the scheduler. Policy files name these fields."""

    order: str = "priority"
    """``priority`` (then first come, first served), ``fcfs``, ``fair_share`` (then priority), ``shortest`` and
    ``size_classes`` (priority, then a head start for short or small jobs), or ``multifactor`` (only head starts)."""
    order_weights: Mapping[str, float] = field(default_factory=dict)
    """How many hours of waiting 1 of each order factor is worth: ``priority``, ``size`` (doublings of the GPUs),
    ``shortest`` (minus the doublings of the expected run time), ``least_work`` (the same of the expected GPU time),
    ``size_class`` (minus the class of the expected GPU time), ``namespace`` (its ``order``), ``fair_share`` (1: nothing
    used), ``age`` (divides all others), and factors of other packages (entry points ``gpu_platform.orders``). A factor
    that is not named has its weight from ``order``, else 0."""
    size_classes_gpu_h: tuple[float, ...] = (1.0, 8.0, 64.0, 512.0)
    """Where the classes of ``size_class`` begin, in GPU-hours. Smaller jobs are in the first class, 0."""
    ageing_per_hour: float = 0.0
    """Priority that a job gains with each hour of waiting; above 0 no job starves."""
    half_life_s: float = 7 * 24 * 3600.0
    """After this time, GPU use counts half as much for ``fair_share``."""
    backfill: str = "easy"
    """Which jobs may start before a waiting job. ``easy``: those that do not delay the promised start of the first
    waiting job. ``conservative``: those that delay no promised start; each waiting job has one. ``keep``: those on
    hosts that the first waiting job cannot use. ``none``: no job. A job whose start depends on jobs without a time
    limit has no promised start and keeps hosts, as with ``keep``."""
    backfill_by_run_times: bool = True
    """With ``easy``: a waiting job to which time limits give no date has a date that follows from learned run times.
    Other jobs may start on its GPUs if they will have ended before, by their time limits or what was learned. Off: it
    keeps its hosts."""
    backfill_depth: int = 100
    """How many waiting jobs at most get a date."""
    preemption: bool = False
    """Jobs may be preempted for jobs of higher priority, and borrowers for jobs within their guarantee."""
    min_run_s: float = 300.0
    """Guaranteed run time: no job is preempted or moved before it has run this long."""
    defragmentation: bool = False
    """Jobs that write checkpoints may be moved for a gang that fits nowhere although enough GPUs are free."""
    defragment_after_s: float = 300.0
    """How long a gang must have waited before jobs are moved for it."""
    defragment_every_s: float = 60.0
    """How often the scheduler looks for such moves."""
    defragmentation_budget: MoveBudget = field(default_factory=MoveBudget)
    """The most moves for one gang."""
    recovery: bool = False
    """Jobs that write checkpoints may be moved for jobs that lost hosts or GPUs."""
    recovery_budget: MoveBudget = field(default_factory=lambda: MoveBudget(jobs=16, lost_gpu_s=32 * 3600.0))
    """The most moves for all jobs of one loss."""
    quotas: Quotas = field(default_factory=Quotas)
    proposal_timeout_s: float = 10.0
    """A proposal that the database has not confirmed after this time is dropped."""
    weights: Mapping[str, float] = field(default_factory=lambda: DEFAULT_WEIGHTS)
    """Weights of the scores, or the name of a set of them. In weights that are given one by one, a score that is not
    named has its weight from the set ``tightest_fit``, else 0."""
    domain_weights: DomainWeights = DOMAIN_WEIGHTS
    """Weights for the choice of a gang's domain (NVLink domain, leaf, spine)."""
    filters: tuple[str, ...] = ()
    """Filters of other packages (entry points ``gpu_platform.filters``) that hosts must pass, by name."""
    binder: str = ""
    """A binder of another package (entry point ``gpu_platform.binders``), by name: it chooses the hosts of a job among
    those that passed all filters. Empty: the platform chooses, by scores and domains."""
    plugins: Annotated[Mapping[str, Score], PlainValidator(dict)] = field(default_factory=dict)
    """Scores of other packages, by name: see ``plugin_loading.load_scores``."""
    site_filters: Annotated[Sequence[NamedFilter], PlainValidator(tuple)] = ()
    """Filters of other packages: see ``plugin_loading.load_filters``."""
    site_binder: Annotated[ChooseHosts | None, PlainValidator(lambda one: one)] = None
    """The binder of another package: see ``plugin_loading.load_binder``."""
    order_plugins: Annotated[Mapping[str, OrderFactor], PlainValidator(dict)] = field(default_factory=dict)
    """Order factors of other packages, by name: see ``plugin_loading.load_order_factors``."""
    plugin_faults: tuple[PluginFault, ...] = ()
    """Plugins that the policy names and that are switched off because they failed."""
    typical_sizes: Mapping[int, float] = field(default_factory=lambda: TYPICAL_SIZES)
    """Expected jobs, for the score ``fragmentation``, until jobs came to learn from: GPUs per host -> how often. By
    default shares of a GPU are expected, too. Each asks for the CPUs that GPUs have on most hosts, less 30 %."""
    typical_tasks: tuple[TypicalTask, ...] = ()
    """Expected jobs with their shares, CPUs, memory and models of GPUs, for the score ``fragmentation``. Empty: learned
    from the jobs that come."""
    max_temperature_c: float | None = None
    """A GPU hotter than this gets no new work, on any host. None: only the limit of its host counts,
    ``node.max_temperature_c``."""
    window_margin_s: float = 60.0
    """Jobs must have ended, by their time limits, so long before an advance reservation or a maintenance window
    begins: starts and ends take time. What still runs at half of it is stopped."""
    system_cpus: int = 0
    """CPUs of every host that no job gets."""
    system_ram_mib: int = 0
    """Memory of every host that no job gets, MiB."""
    fabric: FabricConfig = field(default_factory=FabricConfig)

    @property
    def uses_history(self) -> bool:
        """True if the score ``history`` or the choice of a gang's domain uses how fast earlier jobs ran."""
        return bool(self.weights.get("history") or self.domain_weights.history)

    @property
    def counts_on_run_times(self) -> bool:
        """True if learned run times decide who may pass a waiting job without a promise."""
        return self.backfill == "easy" and self.backfill_by_run_times

    @property
    def uses_shares(self) -> bool:
        """True if the order uses how much namespaces and users have used."""
        return build_order(self).uses_shares

    @property
    def stops_jobs(self) -> bool:
        """True if running jobs may be stopped or moved for waiting jobs."""
        return self.preemption or self.defragmentation or self.recovery

    @property
    def calls_plugins(self) -> bool:
        """True if a decision calls code of other packages."""
        return bool(self.plugins or self.site_filters or self.site_binder or self.order_plugins)

    def without_hanging(self, faults: Iterable[PluginFault]) -> Policy:
        """Return the same policy without those of its plugins that hung while an earlier leader called them."""
        policy = self
        for fault in faults:
            less = policy.without(fault)
            if fault.hangs and replace(less, plugin_faults=policy.plugin_faults) != policy:
                policy = less
        return policy

    def without(self, fault: PluginFault) -> Policy:
        """Return the same policy with that plugin switched off."""
        if any((fault.kind, fault.name) == (other.kind, other.name) for other in self.plugin_faults):
            return self
        return replace(
            self,
            plugins={name: one for name, one in self.plugins.items() if (fault.kind, fault.name) != ("score", name)},
            site_filters=tuple(one for one in self.site_filters if (fault.kind, fault.name) != ("filter", one.name)),
            site_binder=None if (fault.kind, fault.name) == ("binder", self.binder) else self.site_binder,
            order_plugins={
                name: one for name, one in self.order_plugins.items() if (fault.kind, fault.name) != ("order", name)
            },
            plugin_faults=(*self.plugin_faults, fault),
        )


def unknown_scores(policy: Policy) -> set[str]:
    """Return the names in ``weights`` that no score has. Scores that are switched off count as known."""
    return set(policy.weights) - set(_scores(policy, expected_tasks(policy))) - _switched_off(policy, "score")


def unknown_factors(policy: Policy) -> set[str]:
    """Return the names in ``order_weights`` that no order factor has. Factors that are switched off count as known."""
    known = {*_factors(policy), AGE, SHARE}
    return set(policy.order_weights) - known - _switched_off(policy, "order")


def build_order(policy: Policy) -> QueueOrder:
    """Return the order of the queue. Raises ValueError for an order, or a weight of a factor, that does not exist."""
    off = _switched_off(policy, "order")
    weights = {name: weight for name, weight in policy.order_weights.items() if name not in off}
    return queue_order(policy.order, weights, policy.ageing_per_hour, _factors(policy))


def _factors(policy: Policy) -> dict[str, OrderFactor]:
    return {**shipped_factors(policy.quotas, policy.size_classes_gpu_h), **policy.order_plugins}


def _switched_off(policy: Policy, kind: str) -> set[str]:
    return {fault.name for fault in policy.plugin_faults if fault.kind == kind}


def expected_tasks(policy: Policy) -> ExpectedTasks:
    """Return the mix of tasks for the score ``fragmentation``. It learns if the score counts and the policy names no
    tasks.
    """
    if policy.typical_tasks:
        return ExpectedTasks(policy.typical_tasks, learns=False)
    prior = [TypicalTask(gpus, weight=often) for gpus, often in policy.typical_sizes.items()]
    prior += TYPICAL_SHARES if policy.typical_sizes == TYPICAL_SIZES else ()
    return ExpectedTasks(prior, learns=bool(policy.weights.get(FragmentationScore.name)))


def build_framework(policy: Policy, expected: ExpectedTasks | None = None) -> Framework:
    """Return the pipeline, in the order in which it runs. Raises ValueError for a weight of an unknown score.

    ``expected``: the mix of tasks, if the caller lets it learn.
    """
    scores = _scores(policy, expected_tasks(policy) if expected is None else expected)
    if unknown := unknown_scores(policy):
        raise ValueError(f"no score is called {', '.join(sorted(unknown))}; there are: {', '.join(scores)}")
    weights = {**TIGHTEST_FIT, **policy.weights}
    return Framework(
        filters=(
            HostReadyFilter(),  # first: if a host is away, no other reason matters
            ExclusionFilter(),  # before the facts: a GPU on which this job failed is no candidate
            HostNameFilter(),  # which hosts the job names, before what these are
            ReservationFilter(),  # as if it named the hosts of its advance reservation
            LabelFilter(),
            GpuFactFilter(ReasonCode.OTHER_MODEL),  # the facts in the order in which people ask for them
            GpuFactFilter(ReasonCode.TOO_LITTLE_MEMORY),
            GpuFactFilter(ReasonCode.COMPUTE_CAPABILITY),
            CudaFilter(),
            IsolationFilter(),  # a fact of the host, as its CUDA is
            SharingSupportedFilter(),
            GpuCountFilter(),  # after this, every host has enough GPUs of the right kind
            HostCapacityFilter(
                ReasonCode.CPUS, ChangeKind.FACTS, policy.system_cpus
            ),  # what the host could give if it were empty
            HostCapacityFilter(ReasonCode.RAM, ChangeKind.FACTS, policy.system_ram_mib),
            *_changed_by(ChangeKind.FACTS, policy.site_filters),  # each after the platform's own filters of its kind
            HealthyGpuFilter(),  # before FreeGpuFilter: to wait for the job on a broken GPU does not help
            TemperatureFilter(),  # also about the GPU itself, not about its job
            WindowFilter(),  # the GPU works, but is kept; which jobs have it now does not matter then
            *_changed_by(ChangeKind.HEALTH, policy.site_filters),
            FreeGpuFilter(),  # from here on: facts that change all the time, the most familiar reason first
            SameTenantFilter(),  # before ShareCapacityFilter: capacity for another namespace does not count
            ShareCapacityFilter(),
            HostCapacityFilter(ReasonCode.CPUS, ChangeKind.USE, policy.system_cpus),
            HostCapacityFilter(ReasonCode.RAM, ChangeKind.USE, policy.system_ram_mib),
            *_changed_by(ChangeKind.USE, policy.site_filters),
        ),
        scores=tuple((score, weights[name]) for name, score in scores.items() if weights.get(name)),
        choose=_chooser(policy),
        binder=policy.binder if policy.site_binder is not None else "",
        rank_domains=partial(rank_domains, weights=policy.domain_weights),
        site_filters=policy.site_filters,
    )


def _chooser(policy: Policy) -> ChooseHosts:
    own, binder = partial(choose_hosts, weights=policy.domain_weights), policy.site_binder
    if binder is None:
        return own

    def choose(request: ResourceRequest, snapshot: Snapshot, offers: Offers, hosts: HostIndices) -> HostIndices | None:
        """Let the binder choose where there is a choice, and the platform where the binder does not want to."""
        fallback = own(request, snapshot, offers, hosts)
        if fallback is None:
            return None
        chosen = binder(request, snapshot, offers, hosts)
        return fallback if chosen is None else chosen

    return choose


def _changed_by(change: ChangeKind, filters: Sequence[NamedFilter]) -> list[NamedFilter]:
    return [one for one in filters if one.can_change_by is change]


def _scores(policy: Policy, expected: ExpectedTasks) -> dict[str, Score]:
    shipped: tuple[Score, ...] = (
        TopologyScore(),
        BandwidthScore(),
        StrategyScore(),
        StrategyScore("islands", left_counts=0.05, whole_host_is_an_island=False),
        ResourcesScore(),
        UtilisationScore(),
        FragmentationScore(expected),
        ThermalScore(),
        RoundRobinScore(),
        HistoryScore(),
    )
    scores: dict[str, Score] = {**{score.name: score for score in shipped}, **policy.plugins}
    scores[FragmentationScore.name] = scores.pop(FragmentationScore.name)
    return scores  # the score that costs most is the last, because score tables do not ask the last one again
