"""The order of waiting jobs, and what moves a job forward or back in it.

A job's place follows from its arrival and its **head start**: the sum of *factors* times their weights, in hours.
With a head start of 2 it goes ahead of all jobs that came at most 2 hours before it and have none. A negative one puts
it back. All jobs age alike: an hour of waiting counts as an hour. So the order of two jobs never changes, and only jobs
that come within a bounded time after a job can pass it: nobody starves.

This is the sum of Slurm's plugin ``priority/multifactor``, with the age as the unit of all weights. Orders that go by
priority, by shares, or both do so first, and by the sum after it. ``ageing_per_hour`` lets waiting raise the priority.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.queue_orders import AGE, ORDERS, SHARE
from gpu_platform.domain.placing.quota import Quotas
from gpu_platform.scheduling.queueing.fair_share import FairShare, FairShareKey

QueueSortKey = tuple[float, float, str]
"""(urgency, place by arrival and head start, job id). Smaller goes first."""
UNKNOWN_RUN_S = 24 * 3600.0
"""Assumed run time of a job without a time limit, if nothing was learned from earlier ones."""


class OrderFactor(Protocol):
    """Says how much a job goes ahead of its arrival.

    A factor of another package is announced under ``gpu_platform.orders``: a class without required arguments.
    """

    name: str

    def __call__(self, request: PlacementRequest) -> float:
        """Return a finite number. Larger goes earlier. It may depend only on ``request``: no clock, no I/O."""
        ...


class PriorityFactor:
    """The job's priority."""

    name = "priority"

    def __call__(self, request: PlacementRequest) -> float:
        """Return the priority."""
        return float(request.priority)


class SizeFactor:
    """The size of the job: each doubling of its GPUs counts 1. With a negative weight small jobs go first."""

    name = "size"

    def __call__(self, request: PlacementRequest) -> float:
        """Return log2 of the number of GPUs; 0 without GPUs."""
        return math.log2(max(1, request.gpu_count))


class ShortestFactor:
    """The expected run time: each doubling beyond a minute puts the job back by 1."""

    name = "shortest"

    def __call__(self, request: PlacementRequest) -> float:
        """Return minus log2 of 1 + minutes."""
        return -math.log2(1.0 + _run_s(request) / 60.0)


class LeastWorkFactor:
    """The expected GPU time: each doubling beyond a GPU-minute puts the job back by 1. A job without GPUs counts as one
    with one GPU."""

    name = "least_work"

    def __call__(self, request: PlacementRequest) -> float:
        """Return minus log2 of 1 + GPU-minutes."""
        return -math.log2(1.0 + _gpu_s(request) / 60.0)


class SizeClassFactor:
    """The class of the expected GPU time: each class above the first puts the job back by 1."""

    name = "size_class"

    def __init__(self, bounds_gpu_h: Sequence[float]) -> None:
        """``bounds_gpu_h``: where the next class begins, in GPU-hours."""
        self._bounds_s = [bound * 3600.0 for bound in bounds_gpu_h]

    def __call__(self, request: PlacementRequest) -> float:
        """Return minus the number of the class, from 0."""
        return -float(sum(_gpu_s(request) >= bound for bound in self._bounds_s))


class NamespaceFactor:
    """The value ``order`` of the job's namespace in the quotas; 0 for a namespace that they do not name."""

    name = "namespace"

    def __init__(self, quotas: Quotas) -> None:
        self._value = {one.name: one.order for one in quotas.namespaces}

    def __call__(self, request: PlacementRequest) -> float:
        """Return the value of the namespace."""
        return self._value.get(request.namespace, 0.0)


@dataclass(frozen=True)
class QueueOrder:
    """Gives waiting jobs their sort keys."""

    by_priority: bool = True
    by_share: bool = False
    ageing_per_hour: float = 0.0
    factors: Sequence[tuple[OrderFactor, float]] = ()
    """With the head start that 1 is worth, in seconds."""
    share_s: float = 0.0
    """What a whole unused share is worth, in seconds: see :meth:`FairShare.factor`."""

    @property
    def uses_shares(self) -> bool:
        """True if the order of two jobs changes with the use of their namespaces and users."""
        return self.by_share or self.share_s != 0.0

    def sort_key(self, request: PlacementRequest) -> QueueSortKey:
        """Return the sort key of a job, fair shares aside."""
        place = request.enqueued_at - sum(weight * factor(request) for factor, weight in self.factors)
        if not self.by_priority:
            return 0.0, place, request.job_id
        return self.ageing_per_hour / 3600.0 * place - request.priority, place, request.job_id

    def share(self, namespace: str, user: str, shares: FairShare, gpus: int, now: float) -> tuple[FairShareKey, float]:
        """Return the parameters ``strict`` and ``factor`` of :meth:`share_key`. ``gpus``: those of the cluster."""
        strict = shares.order(namespace, user, now) if self.by_share else ()
        return strict, shares.factor(namespace, user, gpus, now) if self.share_s else 0.0

    def share_key(self, key: QueueSortKey, strict: FairShareKey, factor: float) -> FairShareKey:
        """Return what comes before the sort key ``key`` where shares matter."""
        if not self.share_s:
            return strict
        urgency, place, _ = key
        ahead = self.share_s * factor
        return *strict, (urgency - self.ageing_per_hour / 3600.0 * ahead * self.by_priority, ""), (place - ahead, "")


def queue_order(
    order: str,
    weights: Mapping[str, float],
    ageing_per_hour: float,
    factors: Mapping[str, OrderFactor],
) -> QueueOrder:
    """Return an order of :data:`ORDERS` with these weights, in hours. Raises ValueError for a name that is unknown."""
    if order not in ORDERS:
        raise ValueError(f"there is no queue order {order!r}; there are: {', '.join(ORDERS)}")
    rule = ORDERS[order]
    given = {AGE: 1.0, **rule.weights, **weights}
    known = {*factors, AGE, SHARE}
    if unknown := sorted(set(given) - known):
        raise ValueError(
            f"order_weights: no factor is called {', '.join(unknown)}; there are: {', '.join(sorted(known))}"
        )
    if not all(map(math.isfinite, given.values())) or given[AGE] <= 0:
        raise ValueError("order_weights are finite, and age is above 0: else a job could wait for ever")
    hour_s = 3600.0 / given[AGE]
    return QueueOrder(
        by_priority=rule.by_priority,
        by_share=rule.by_share,
        ageing_per_hour=ageing_per_hour,
        factors=[(factor, given[name] * hour_s) for name, factor in factors.items() if given.get(name)],
        share_s=given.get(SHARE, 0.0) * hour_s,
    )


def shipped_factors(quotas: Quotas, class_bounds_gpu_h: Sequence[float]) -> dict[str, OrderFactor]:
    """Return name -> factor for the factors that the platform has."""
    shipped: tuple[OrderFactor, ...] = (
        PriorityFactor(),
        SizeFactor(),
        ShortestFactor(),
        LeastWorkFactor(),
        SizeClassFactor(class_bounds_gpu_h),
        NamespaceFactor(quotas),
    )
    return {factor.name: factor for factor in shipped}


def _gpu_s(request: PlacementRequest) -> float:
    return _run_s(request) * max(1, request.gpu_count)


def _run_s(request: PlacementRequest) -> float:
    expected = request.expected_run_s
    return UNKNOWN_RUN_S if expected is None else expected
