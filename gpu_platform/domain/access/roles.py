"""Roles, what each may do, and permissions, by which a token may be limited."""

from __future__ import annotations

from enum import StrEnum

CLUSTER = "*"
"""In place of a namespace: the whole cluster, with all its namespaces, hosts and GPUs."""


class Role(StrEnum):
    """What somebody may do in a namespace, or in the whole cluster. Each role includes the one before it."""

    VIEWER = "viewer"
    """See jobs, and hosts without the jobs of others."""
    USER = "user"
    """Submit jobs, and stop, enter and read the output of one's own."""
    OPERATOR = "operator"
    """Stop jobs of others. In the whole cluster: also take hosts and GPUs out of service and put them back."""
    ADMIN = "admin"
    """Everything: also output of others' jobs, commands beside them, and tokens."""

    def includes(self, other: Role) -> bool:
        """True if this role may do everything that ``other`` may."""
        return _ORDER[self] >= _ORDER[other]


_ORDER = {role: place for place, role in enumerate(Role)}


class Permission(StrEnum):
    """What a route does. A token may be limited to some of these: its scopes."""

    JOBS_READ = "jobs:read"
    JOBS_SUBMIT = "jobs:submit"
    JOBS_STOP = "jobs:stop"
    JOBS_LOGS = "jobs:logs"
    JOBS_EXEC = "jobs:exec"
    JOBS_CHECKPOINT = "jobs:checkpoint"
    HOSTS_READ = "hosts:read"
    HOSTS_OPERATE = "hosts:operate"
    HOSTS_REPORT = "hosts:report"
    CLUSTER_READ = "cluster:read"
    """Everything that is about all namespaces at once: snapshots, events of GPUs, records for vendors."""
    METRICS_READ = "metrics:read"
    ALERTS_SEND = "alerts:send"
    """Send alerts as Prometheus does, and test messages: they reach the people on call."""
    AUDIT_READ = "audit:read"
    PAYLOADS_READ = "payloads:read"
    """What is sealed in Temporal: the messages of all jobs, without their environments."""
    TOKENS_MANAGE = "tokens:manage"
    SECRETS_MANAGE = "secrets:manage"
    SECRETS_RECEIVE = "secrets:receive"
    """Of a host, for attempts that run there."""
    UPLOADS_RECEIVE = "uploads:receive"
    """As ``SECRETS_RECEIVE``, for the code of their jobs."""
    SELF_READ = "self:read"
    """Who one is, and the description of the API."""
