"""Partitions: the values of the label ``partition`` that hosts have. A cluster without the label has none."""

from __future__ import annotations

from typing import Any

LABEL = "partition"


def partitions() -> set[str]:
    """The partitions of the cluster."""
    from gpu_platform.cli import session

    with session.service() as client:
        return {name for host in hosts_as_json(client) if (name := partition_of(host))}


def partition_of(host: dict[str, Any]) -> str | None:
    """The partition of a host, as the service describes the host. None: it is in none."""
    return (host.get("labels") or {}).get(LABEL)


def hosts_as_json(client: Any) -> list[dict[str, Any]]:
    """All hosts, as the service sends them."""
    from gpu_platform.client import calls

    return list(client.json_pages(calls.hosts))
