"""What a namespace or user may still have: quotas compared with what is held now."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas


@dataclass(frozen=True, slots=True)
class QuotaDenial:
    """Why the quotas do not allow more GPUs now, and what would help."""

    message: str
    next_step: str = "wait until jobs of the namespace end, or have the quota raised"
    for_want_of_gpus: bool = False
    """True if free GPUs are all that is missing, whoever releases them."""


class QuotaUsage:
    """Counts GPUs per namespace, with all namespaces below it, and per user of a namespace."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._held: Counter[str] = Counter()
        self._of_user: Counter[tuple[str, str]] = Counter()
        self._path = lru_cache(maxsize=10_000)(quotas.path)
        named = {node.name: node for node in quotas.namespaces}
        self._owners = [
            node
            for node in quotas.namespaces
            if node.guaranteed_gpus and not any(above.guaranteed_gpus for above in quotas.path(node.name)[:-1])
        ]
        """Namespaces with a guarantee that is not inside another guarantee."""
        self.by_user = any(node.max_gpus_per_user is not None for node in named.values())
        self.idle = not named and quotas.policy is AllocationPolicy.DYNAMIC
        """True if no quota limits anything."""
        self.lends = quotas.policy is AllocationPolicy.HYBRID and bool(self._owners)
        """True if unused guaranteed GPUs are lent to other namespaces."""

    def charge(self, namespace: str, user: str, gpus: int) -> None:
        """Note that ``user`` holds ``gpus`` more. A negative number means fewer."""
        for node in self._path(namespace):
            self._held[node.name] += gpus
            self._of_user[node.name, user] += gpus

    @contextmanager
    def assuming(self, charges: Iterable[tuple[str, str, int]]) -> Iterator[None]:
        """Within the block, count as if each (namespace, user) held so many GPUs more, or fewer."""
        made: list[tuple[str, str, int]] = []
        try:
            for namespace, user, gpus in charges:
                self.charge(namespace, user, gpus)
                made.append((namespace, user, gpus))
            yield
        finally:
            for namespace, user, gpus in made:
                self.charge(namespace, user, -gpus)

    def held(self, namespace: str) -> int:
        """Return how many GPUs the namespace holds."""
        return self._held[namespace]

    def denial(self, namespace: str, user: str, gpus: int, free: int) -> QuotaDenial | None:
        """Say why the quotas do not allow ``gpus`` more, with ``free`` GPUs in the whole cluster. None: they allow
        it.
        """
        if self.idle or not gpus:
            return None
        path = self._path(namespace)
        for node in path:
            if node.limit_gpus is not None and self._held[node.name] + gpus > node.limit_gpus:
                held = self._held[node.name]
                return QuotaDenial(f"namespace {node.name} holds {held} of at most {node.limit_gpus} GPUs")
            used = self._of_user[node.name, user]
            if node.max_gpus_per_user is not None and used + gpus > node.max_gpus_per_user:
                return QuotaDenial(
                    f"{user} holds {used} of at most {node.max_gpus_per_user} GPUs in namespace {node.name}"
                )
        if self._quotas.policy is AllocationPolicy.DYNAMIC or self.is_guaranteed(namespace, gpus):
            return None
        owner = self._owner(path)
        held, guaranteed = self._held[owner.name], owner.guaranteed_gpus
        if self._quotas.policy is AllocationPolicy.STATIC:
            return QuotaDenial(f"namespace {owner.name} holds {held} of {guaranteed} guaranteed GPUs")
        reserved = sum(self._reserved(other) for other in self._owners if other not in path)
        if free - gpus < reserved:
            return QuotaDenial(
                f"namespace {owner.name} holds {held} GPUs and is guaranteed {guaranteed}; it may have "
                f"{max(0, free - reserved)} more now: {free} are free"
                + (f", and {reserved} are reserved for others" if reserved else ""),
                "wait until jobs end, of any namespace, or have the guarantee raised",
                for_want_of_gpus=True,
            )
        return None

    def borrowed(self, running: Iterable[str]) -> dict[str, int]:
        """Return how many GPUs each namespace in ``running`` holds beyond its guarantee."""
        if self._quotas.policy is not AllocationPolicy.HYBRID:
            return {}
        found = {}
        for namespace in set(running):
            owner = self._owner(self._path(namespace))
            found[namespace] = max(0, self._held[owner.name] - owner.guaranteed_gpus)
        return found

    def is_guaranteed(self, namespace: str, gpus: int) -> bool:
        """Tell whether the namespace stays within its guarantee with ``gpus`` more. With 0: whether it is within it
        now.
        """
        owner = self._owner(self._path(namespace))
        return self._held[owner.name] + gpus <= owner.guaranteed_gpus

    def _owner(self, path: tuple[Namespace, ...]) -> Namespace:
        """Return the namespace whose guarantee counts: the nearest one on the way up."""
        return next((node for node in reversed(path) if node.guaranteed_gpus), path[-1])

    def _reserved(self, node: Namespace) -> int:
        kept = math.ceil(self._quotas.reserved_ratio * node.guaranteed_gpus - 1e-9)
        return max(0, kept - self._held[node.name])
