"""Hosts that fail together: under one leaf, in one rack, in one NVLink domain, on one power feed.

When many hosts fall silent together, one thing failed and not many. It is found by what explains most: the domain
that covers most lost hosts and fewest others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpu_platform.domain.domain_loss import DomainLoss
from gpu_platform.domain.rows import HostRow
from gpu_platform.topology.fabric import NVLINK, Fabric, FabricConfig

Domain = tuple[str, str]
"""(level, name); the name says where it lies, if it needs that to be unique."""


def failure_domains(hosts: Iterable[HostRow], config: FabricConfig) -> dict[str, list[Domain]]:
    """Per host the domains that it is in, nearest first. Domains whose name nobody knows are left out."""
    fabric = Fabric(config)
    found: dict[str, list[Domain]] = {}
    for row in hosts:
        told = {**row.inventory.labels, **{k: v for k, v in (("leaf", row.leaf), ("spine", row.spine)) if v}}
        names = fabric.domains_of(row.name, told)
        domains = found[row.name] = []
        if row.inventory.nvlink_domain:
            domains.append((NVLINK, row.inventory.nvlink_domain))
        for number, level in enumerate(config.levels):
            if names.get(level) is not None:
                # Two spines may each have a leaf 1.
                path = [name for outer in config.levels[number:] if (name := names.get(outer)) is not None]
                domains.append((level, " of ".join(path)))
        domains += [(level, name) for level in config.failure_levels if (name := names.get(level)) is not None]
    return found


def recognise_domain_loss(
    lost: Collection[str], domains: Mapping[str, Collection[Domain]], gone_before: Collection[str] = ()
) -> list[DomainLoss]:
    """The domains whose failure explains that the hosts ``lost`` were lost together; those that explain most first.

    A domain counts if two of its hosts or more are lost, and more of them than are still up; ``gone_before`` are
    neither. Each host is explained once. ``domains`` is that of :func:`failure_domains`, of all hosts.
    """
    members: dict[Domain, set[str]] = {}
    for host, of_host in domains.items():
        for domain in of_host:
            members.setdefault(domain, set()).add(host)
    nearness = {domain: place for of_host in domains.values() for place, domain in enumerate(of_host)}
    unexplained, gone = set(lost), set(gone_before) - set(lost)
    touched = {domain for host in unexplained for domain in domains.get(host, ())}
    found: list[DomainLoss] = []

    def gain(domain: Domain) -> int:
        """Lost hosts that it explains, less those that should be lost too, but are up."""
        hosts = members[domain]
        return len(hosts & unexplained) - len(hosts - set(lost) - gone)

    while touched:
        best = min(touched, key=lambda domain: (-gain(domain), nearness[domain], domain))
        hosts = members[best] & unexplained
        touched.discard(best)
        if gain(best) <= 0:
            break
        if len(hosts) >= 2:
            found.append(DomainLoss(*best, tuple(sorted(hosts)), len(members[best])))
            unexplained -= hosts
    return found
