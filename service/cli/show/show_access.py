"""Tokens and principals for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.access.secrets import SecretInfo
from gpu_platform.domain.access.tokens import TokenInfo, WhoAmI
from gpu_platform.domain.texts import duration


def tokens_table(tokens: Sequence[TokenInfo]) -> Table:
    """One row for each token."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("ID", "USER", "ROLES", "SCOPES", "EXPIRES", "LAST USED", "NOTE"):
        table.add_column(title, overflow="fold")
    for token in tokens:
        expires = "ended" if token.revoked_at is not None else _time(token.expires_at, "never")
        scopes = "all" if token.scopes is None else ", ".join(token.scopes)
        cells = (token.id, token.user, _roles(token.roles), scopes, expires, _time(token.last_used_at, "-"), token.note)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def secrets_table(secrets: Sequence[SecretInfo]) -> Table:
    """One row for each secret."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("NAMESPACE", "NAME", "KIND", "MADE BY", "SET", "SET BY"):
        table.add_column(title, overflow="fold")
    for one in secrets:
        kind = "text" if one.is_text else "binary"
        cells = (one.namespace, one.name, kind, one.created_by, _time(one.updated_at, "-"), one.updated_by)
        table.add_row(*(Text(cell) for cell in cells))
    return table


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


def _time(at: datetime | None, otherwise: str) -> str:
    return otherwise if at is None else f"{at:%Y-%m-%d %H:%M}"
