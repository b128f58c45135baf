"""What can be set about deciding, and the recipe that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_platform.domain.placement import ReasonCode
from gpu_platform.domain.quota import Quotas
from gpu_platform.scheduling.framework import Framework
from gpu_platform.scheduling.plugins.closeness import Bandwidth, Topology
from gpu_platform.scheduling.plugins.exclusion import NotExcluded
from gpu_platform.scheduling.plugins.facts import Fact, TooFew
from gpu_platform.scheduling.plugins.gang import choose_hosts
from gpu_platform.scheduling.plugins.readiness import Free, HostReady, Working
from gpu_platform.scheduling.plugins.strategy import PackOrSpread
from gpu_platform.topology.fabric import FabricConfig

DEFAULT_WEIGHTS: Mapping[str, float] = {"topology": 20.0, "bandwidth": 2.0, "strategy": 1.0}
"""A step between topology levels (0.2 x 20) outweighs everything below it."""


@dataclass(frozen=True)
class Policy:
    order: str = "priority"
    """``priority`` (then first come, first served), ``fcfs``, or ``fair_share`` (then priority)."""
    ageing_per_hour: float = 0.0
    """Priority that an hour of waiting is worth; above 0 no job starves."""
    half_life_s: float = 7 * 24 * 3600.0
    """After it, use counts half against its namespace (``fair_share``)."""
    backfill: str = "easy"
    """What a waiting job leaves to those behind it: ``easy`` whatever does not delay its promised start,
    ``keep`` the hosts that it cannot use, ``none`` nothing. A job whose start depends on jobs without a time limit
    has no promised start: ``easy`` is ``keep`` then."""
    quotas: Quotas = field(default_factory=Quotas)
    proposal_timeout_s: float = 10.0
    """A proposal that nobody confirmed is forgotten after this."""
    weights: Mapping[str, float] = field(default_factory=lambda: DEFAULT_WEIGHTS)
    """Of the scores; one that is not named counts as in DEFAULT_WEIGHTS."""
    fabric: FabricConfig = field(default_factory=FabricConfig)


def framework_of(policy: Policy) -> Framework:
    """The pipeline, in the order it runs. Raises ValueError for a weight of an unknown score."""
    scores = (Topology(), Bandwidth(), PackOrSpread())
    unknown = set(policy.weights) - {score.name for score in scores}
    if unknown:
        raise ValueError(f"no score is called {', '.join(sorted(unknown))}; there are: {', '.join(DEFAULT_WEIGHTS)}")
    weights = {**DEFAULT_WEIGHTS, **policy.weights}
    return Framework(
        filters=(
            HostReady(),  # first: of a host that is away nothing else is worth saying
            NotExcluded(),  # before the facts: a GPU that failed this job is no candidate, whatever it is
            Fact(ReasonCode.OTHER_MODEL),  # the facts in the order in which people ask for them
            Fact(ReasonCode.TOO_LITTLE_MEMORY),
            Fact(ReasonCode.COMPUTE_CAPABILITY),
            TooFew(),  # from here on every host had enough GPUs of the right kind
            Working(),  # before Free: a GPU under repair is no reason to wait for its job
            Free(),  # last: the filter that changes all the time, and the reason people know best
        ),
        scores=tuple((score, weights[score.name]) for score in scores),
        choose=choose_hosts,
    )
