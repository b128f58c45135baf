"""Tokens and principals for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.access.tokens import WhoAmI
from gpu_platform.domain.texts import duration


def who(found: WhoAmI) -> RenderableType:
    """Name, roles, and what limits them."""
    lines = [f"{found.name} ({found.kind}), signed in by {found.signed_in_by}", f"roles: {_roles(found.roles)}"]
    if found.scopes is not None:
        lines.append(f"only: {', '.join(found.scopes)}")
    if found.acting_as is not None:
        lines.append(f"acting as {found.acting_as}")
    for namespace, highest in found.max_priority.items():
        lines.append(f"highest priority {_place(namespace)}: {highest}")
    levels = ", ".join(f"{name} {value}" for name, value in sorted(found.priorities.items(), key=lambda one: one[1]))
    lines.append(f"priorities: {levels}")
    for kind, of in found.kinds.items():
        unnamed = ", also if a job names no kind" if kind == found.default_kind else ""
        lines.append(f"kind {kind}: {of.strategy}, priority {of.priority}{unnamed}")
    if found.default_priority:
        lines.append(f"priority of jobs that name none: {found.default_priority}")
    if found.default_time_limit_s is not None:
        lines.append(f"time limit of jobs that name none: {duration(found.default_time_limit_s)}")
    return Text("\n".join(lines))


def _roles(roles: Mapping[str, Role]) -> str:
    return ", ".join(f"{role} {_place(namespace)}" for namespace, role in sorted(roles.items())) or "none"


def _place(namespace: str) -> str:
    return "in the cluster" if namespace == "*" else f"in {namespace}"
