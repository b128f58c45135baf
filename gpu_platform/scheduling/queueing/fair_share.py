"""Fair share: the job whose namespace and user have used least for their weight is next.

It is decided level by level of the namespace tree. The use of a node is what it holds now plus a decaying average of
what it held before, in GPUs. The average makes up for the past and forgets it with a half-life (Kay and Lauder, "A
fair share scheduler", 1988). What is held now counts at once, so that GPUs that become free together are shared as
well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gpu_platform.domain.placing.cluster_state import PastUseRow
from gpu_platform.domain.placing.quota import Quotas

FairShareKey = tuple[tuple[float, str], ...]
"""Sorts jobs by fair share. One (use per weight, name) for each level of the tree, from the top."""
HALF_LIVES = 8
"""After this many half-lives, use counts less than half a percent and can be forgotten."""


@dataclass(slots=True)
class _Use:
    average: float = 0.0
    held: int = 0
    at: float = 0.0


class FairShare:
    """The use of every namespace and user. Times are those of ``Scheduler.decide``. All users of a namespace have the
    same weight.
    """

    def __init__(self, quotas: Quotas, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._uses: dict[tuple[str, ...], _Use] = {}
        self._users: dict[str, set[str]] = {}
        """Namespace -> the users that have used something."""
        self._path = lru_cache(maxsize=10_000)(lambda namespace: _with_prefixes(quotas, namespace))

    def charge(self, namespace: str, user: str, gpus: int, now: float) -> None:
        """Note that from ``now`` on ``user`` holds ``gpus`` more. A negative number means fewer."""
        self._users.setdefault(namespace, set()).add(user)
        for node in self._nodes(namespace, user):
            use = self._uses.setdefault(node, _Use(at=now))
            use.average, use.at = self._average(use, now), now
            use.held += gpus

    def remember(self, row: PastUseRow, now: float) -> None:
        """Add what was held from ``row.begin`` to ``row.end``, before ``now``."""
        self._users.setdefault(row.namespace, set()).add(row.user)
        worth = row.gpus * (self._kept(now - row.end) - self._kept(now - row.begin))
        for node in self._nodes(row.namespace, row.user):
            use = self._uses.setdefault(node, _Use(at=now))
            use.average, use.at = self._average(use, now) + worth, now

    def order(self, namespace: str, user: str, now: float) -> FairShareKey:
        """Return the sort key of a user's jobs. Smaller goes first; with equal use, the name decides."""
        return tuple(
            (self.use(node, now) / weight, node[-1])
            for node, weight in (*self._path(namespace), ((namespace, "", user), 1.0))
        )

    def factor(self, namespace: str, user: str, gpus: int, now: float) -> float:
        """Return 1 for a user who has used nothing, one half for one who uses exactly the fair share of the cluster's
        ``gpus``, and less for more: 2 to the power of minus use by share, as Slurm's ``priority/multifactor`` has it.

        On each level of the tree the share is divided by the weights of the siblings that have used something, and
        among the users of a namespace equally. The mean over the levels counts.
        """
        share, parent, ratios = float(max(1, gpus)), "", list[float]()
        for node, weight in self._path(namespace):
            share *= weight / (weight + self._weights_beside(node[-1], parent))
            ratios.append(self.use(node, now) / share)
            parent = node[-1]
        share /= len(self._users.get(namespace, set()) | {user})
        ratios.append(self.use((namespace, "", user), now) / share)
        return 0.5 ** (sum(ratios) / len(ratios))

    def _weights_beside(self, name: str, parent: str) -> float:
        """Return the sum of the weights of the siblings of a namespace that have used something."""
        beside = 0.0
        for one in [node[0] for node in self._uses if len(node) == 1 and node[0] != name]:
            *above, (_, weight) = self._path(one)
            if (above[-1][0][-1] if above else "") == parent:
                beside += weight
        return beside

    def use(self, node: tuple[str, ...], now: float) -> float:
        """Return the use of a node: the decayed average plus what it holds now, in GPUs."""
        use = self._uses.get(node)
        return 0.0 if use is None else self._average(use, now) + use.held

    def _average(self, use: _Use, now: float) -> float:
        kept = self._kept(now - use.at)
        return use.average * kept + use.held * (1.0 - kept)

    def _kept(self, seconds: float) -> float:
        """Return which fraction of use from so long ago still counts."""
        return 0.5 ** (max(0.0, seconds) / self._half_life_s)

    def _nodes(self, namespace: str, user: str) -> list[tuple[str, ...]]:
        return [*(node for node, _ in self._path(namespace)), (namespace, "", user)]


def _with_prefixes(quotas: Quotas, namespace: str) -> tuple[tuple[tuple[str], float], ...]:
    return tuple(((node.name,), node.weight) for node in quotas.path(namespace))
