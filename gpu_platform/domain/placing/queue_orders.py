"""The orders of the queue that a policy names, and what each goes by. The store shows places by the same rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

AGE, SHARE = "age", "fair_share"
"""Names in the weights that are no factors: what an hour of waiting counts, and the fair share of the job's user."""


@dataclass(frozen=True)
class OrderRule:
    """What an order of the policy goes by. ``order_weights`` of its methods: those of the policy."""

    by_priority: bool
    by_share: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of factors that ``Policy.order_weights`` does not name."""

    def has_head_starts(self, order_weights: Mapping[str, float]) -> bool:
        """Tell whether a job's place depends on more than priority and arrival."""
        given = {**self.weights, **order_weights}
        return any(weight for name, weight in given.items() if name not in (AGE, SHARE))

    def uses_shares(self, order_weights: Mapping[str, float]) -> bool:
        """Tell whether the order of two users' jobs changes with what they use."""
        return self.by_share or bool({**self.weights, **order_weights}.get(SHARE))


ORDERS: Mapping[str, OrderRule] = {
    "priority": OrderRule(by_priority=True),
    "fcfs": OrderRule(by_priority=False),
    "fair_share": OrderRule(by_priority=True, by_share=True),
    "shortest": OrderRule(by_priority=True, weights={"shortest": 2.0, "size": 2.0}),
    "size_classes": OrderRule(by_priority=True, weights={"size_class": 4.0}),
    "multifactor": OrderRule(by_priority=False, weights={"priority": 0.1, "shortest": 2.0, "size": 2.0, SHARE: 4.0}),
}
"""The orders of ``Policy.order``."""
