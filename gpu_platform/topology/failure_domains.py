"""Hosts that fail together: under one leaf, in one rack, in one NVLink domain, on one power feed.

When many hosts are lost together, probably one thing failed. It is the domain that contains most lost hosts and the
fewest others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpu_platform.domain.hosts.lease import DomainLoss
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.topology.fabric import NVLINK, Fabric, FabricConfig

Domain = tuple[str, str]
"""(level, name). The name says inside which domains it is, where it would not be unique otherwise."""


def failure_domains(hosts: Iterable[HostRow], config: FabricConfig) -> dict[str, list[Domain]]:
    """Return for each host its domains, nearest first. Domains without a known name are left out."""
    fabric = Fabric(config)
    found: dict[str, list[Domain]] = {}
    for row in hosts:
        names = fabric.labels_of(row)
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
    """Return the domains whose failure explains that the hosts ``lost`` were lost together, the best explanation
    first.

    A domain counts if at least two of its hosts are lost, and more of them than are still up. Hosts in
    ``gone_before`` count as neither. Each host is explained once. ``domains`` is the result of
    :func:`failure_domains` for all hosts.
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
        """Lost hosts that the domain explains, minus hosts that should be lost too but are up."""
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
