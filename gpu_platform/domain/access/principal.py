"""Who asks: a person, a job, a host's node worker, or a process of the platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_platform.domain.access.roles import CLUSTER, Permission, Role


class PrincipalKind(StrEnum):
    """What kind of thing a principal is."""

    PERSON = "person"
    """A person, or a program that has a token of its own, e.g. a scraper of metrics."""
    JOB = "job"
    """A rank of a running job."""
    NODE = "node"
    """The node worker of one host."""
    PROCESS = "process"
    """Another process of the platform, e.g. control or scheduler."""


@dataclass(frozen=True)
class Principal:
    """Somebody who proved who they are, and what they may do."""

    kind: PrincipalKind
    name: str
    """The user's, job's, host's or process's name."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Namespace -> role; ``*``: in the whole cluster."""
    permissions: frozenset[Permission] | None = None
    """The scopes of its token. None: everything that its roles allow."""
    max_priority: int | None = None
    """The highest priority of jobs that it may submit. None: what its role allows."""
    signed_in_by: str = ""
    """How it proved who it is, for people: ``token t-4k2h``, ``https://login.example.com``, ``certificate``."""
    user: str | None = None
    """Of a job: the user who submitted it."""
    token_id: str | None = None
    """The id of its API token. None: it proved who it is by something else."""
    mail: str | None = None
    """Its mail address, as the identity provider says. None: nobody says one."""
    ends_at: float | None = None
    """When its token ends by itself, Unix seconds. None: it has no such end, or another one."""

    @property
    def id(self) -> str:
        """Kind and name: two principals are the same if and only if these are equal."""
        return f"{self.kind}/{self.name}"

    @property
    def actor(self) -> str:
        """The name in events: a person's name as it is, others with their kind, e.g. ``node/dgx-a``."""
        return self.name if self.kind is PrincipalKind.PERSON else self.id

    def role_in(self, namespace: str) -> Role | None:
        """The role in a namespace, or in the cluster for ``*``. None: no role, so it must not see it."""
        found = [role for role in (self.roles.get(namespace), self.roles.get(CLUSTER)) if role is not None]
        return next((role for role in found if all(role.includes(other) for other in found)), None)

    def has(self, role: Role, namespace: str) -> bool:
        """True if it has at least this role in the namespace (``*``: in the cluster)."""
        own = self.role_in(namespace)
        return own is not None and own.includes(role)

    def namespaces(self, role: Role = Role.VIEWER) -> frozenset[str] | None:
        """The namespaces in which it has at least this role. None: all of them."""
        if self.has(role, CLUSTER):
            return None
        return frozenset(namespace for namespace in self.roles if namespace != CLUSTER and self.has(role, namespace))

    def may(self, permission: Permission) -> bool:
        """True if its token is not limited to other permissions."""
        return self.permissions is None or permission in self.permissions

    def described(self) -> str:
        """Name and roles, for messages: ``alice (user in team-a)``."""
        roles = ", ".join(f"{role} {_where(namespace)}" for namespace, role in sorted(self.roles.items()))
        return f"{self.actor} ({roles or 'no role'})"


def _where(namespace: str) -> str:
    return "in the cluster" if namespace == CLUSTER else f"in {namespace}"
