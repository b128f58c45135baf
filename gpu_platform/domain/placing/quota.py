"""Quotas: namespaces, their shares and their limits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class AllocationPolicy(StrEnum):
    """How guarantees of namespaces divide the cluster."""

    STATIC = "static"
    """A namespace has only its guarantee."""
    DYNAMIC = "dynamic"
    """Jobs get what is free, up to the limits. Guarantees are ignored."""
    HYBRID = "hybrid"
    """A part of each guarantee is kept free for its owner. Others may borrow the rest until the owner needs it. A
    job within its guarantee may also use what is kept free for others: borrowers are preempted for it."""


class Namespace(BaseModel):
    """One namespace of the tree. Its GPUs are its own and those of all namespaces below it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    parent: str | None = None
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its share among its siblings, for ``fair_share``."""
    order: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """The value of the order factor ``namespace`` for its jobs: see ``order_weights``. Namespaces below it have their
    own."""
    guaranteed_gpus: Annotated[int, Field(ge=0)] = 0
    limit_gpus: Annotated[int, Field(ge=0)] | None = None
    max_gpus_per_user: Annotated[int, Field(ge=0)] | None = None
    max_job_duration_s: Annotated[int, Field(gt=0)] | None = None
    max_queue_size: Annotated[int, Field(ge=0)] | None = None


class QuotaUse(BaseModel):
    """What a namespace may hold, and what its jobs hold now. Of a namespace that no quota names: what they hold."""

    namespace: str
    parent: str | None = None
    weight: float = 1.0
    """Its share among its siblings, for ``fair_share``."""
    guaranteed_gpus: int = 0
    limit_gpus: int | None = None
    """None, as of those below: there is no limit."""
    max_gpus_per_user: int | None = None
    max_job_duration_s: int | None = None
    max_queue_size: int | None = None
    held_gpus: float = 0.0
    """GPUs that its own jobs hold; a share counts as that part of one. Namespaces below it are not counted."""
    held_by_user: dict[str, float] = {}
    waiting_jobs: int = 0
    """Jobs in the queue. Elements of arrays that have not entered it yet are not counted."""


class Quotas(BaseModel):
    """The tree of namespaces. A namespace that it does not name is at the top, with weight 1, no guarantee and no
    limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: AllocationPolicy = AllocationPolicy.DYNAMIC
    reserved_ratio: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The part of each guarantee that is not lent, with ``hybrid``."""
    namespaces: tuple[Namespace, ...] = ()

    @model_validator(mode="after")
    def _is_a_forest(self) -> Self:
        parents = {namespace.name: namespace.parent for namespace in self.namespaces}
        if len(parents) != len(self.namespaces):
            raise ValueError("a namespace is named twice")
        for name in parents:
            seen, parent = {name}, parents[name]
            while parent is not None:
                if parent not in parents:
                    raise ValueError(f"the parent {parent!r} is no namespace")
                if parent in seen:
                    raise ValueError(f"namespace {name!r} lies below itself")
                seen.add(parent)
                parent = parents[parent]
        return self

    def path(self, namespace: str) -> tuple[Namespace, ...]:
        """The namespaces from the top of the tree down to ``namespace``."""
        nodes = {node.name: node for node in self.namespaces}
        path, name = [], namespace
        while True:
            node = nodes.get(name, Namespace(name=name))
            path.append(node)
            if node.parent is None:
                return tuple(reversed(path))
            name = node.parent

    def longest_s(self, namespace: str) -> int | None:
        """The longest time limit of a job there, in seconds: the shortest of those of its namespaces. None: any."""
        return min((node.max_job_duration_s for node in self.path(namespace) if node.max_job_duration_s), default=None)

    def refusal(
        self, namespace: str, time_limit_s: float | None, waiting: int, gpus: int = 0, jobs: int = 1
    ) -> str | None:
        """Why a submission is refused while ``waiting`` jobs of the namespace are in the queue. None: it is accepted.

        ``gpus``: GPUs of this job alone, spares included. A job that exceeds a limit by itself would wait for ever.
        ``jobs``: how many such jobs are submitted together: the elements of an array.
        """
        path = self.path(namespace)
        for node in path:
            for limit, of in (
                (node.limit_gpus, f"namespace {node.name} may have"),
                (node.max_gpus_per_user, f"a user of namespace {node.name} may have"),
            ):
                if limit is not None and gpus > limit:
                    return _too_many(gpus, f"{of} at most {limit}", limit)
        owner = next((node for node in reversed(path) if node.guaranteed_gpus), path[-1])
        if self.policy is AllocationPolicy.STATIC and gpus > owner.guaranteed_gpus:
            guaranteed = f"namespace {owner.name} is guaranteed {owner.guaranteed_gpus}, and nobody gets more (static)"
            return _too_many(gpus, guaranteed, owner.guaranteed_gpus)
        for node in path:
            longest = node.max_job_duration_s
            if longest is not None and (time_limit_s is None or time_limit_s > longest):
                asked = "no time limit" if time_limit_s is None else f"a time limit of {time_limit_s:g} s"
                return f"{asked} was asked for; namespace {node.name} allows at most {longest} s: set time_limit_s"
            if node.name == namespace and node.max_queue_size is not None and waiting + jobs > node.max_queue_size:
                more = "" if jobs == 1 else f", and the array has {jobs} elements"
                later = "try later" if jobs <= node.max_queue_size else "submit smaller arrays"
                return f"{waiting} jobs of namespace {namespace} wait; at most {node.max_queue_size} may{more}: {later}"
        return None


def _too_many(gpus: int, allowed: str, limit: int) -> str:
    asked = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    instead = f"ask for at most {limit}" if limit else "ask for none"
    return f"{asked} were asked for; {allowed}: {instead}, or have the limit raised"
