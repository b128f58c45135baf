"""How hosts are connected: hosts under leaf switches, leaf switches under spines, racks that NVLink spans.

A **level** divides the hosts into domains. There is always ``nvlink`` (NVLink domains over several hosts),
then those of the configuration, nearest first: ``leaf`` and ``spine`` unless it names more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from gpu_platform.domain.placing.scheduler_input import HostRow

NVLINK = "nvlink"
_RESERVED = frozenset({NVLINK, "numa", "socket", "host", "any"})


class FabricRule(BaseModel):
    """The domains of hosts with certain names. It overrides what the hosts report."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: str
    """A pattern as in a shell: ``dgx-a*``."""
    domains: dict[str, str]
    """Level -> domain, e.g. ``{"leaf": "l7", "spine": "s1"}``."""


class FabricConfig(BaseModel):
    """The levels of the fabric, and rules for the places of hosts.

    A level other than ``leaf`` and ``spine`` takes its domains from the host label with its name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    levels: tuple[str, ...] = ("leaf", "spine")
    """The levels, nearest first. A domain lies inside one domain of every later level."""
    rules: tuple[FabricRule, ...] = ()
    """If several rules name a level, the last one counts."""
    failure_levels: tuple[str, ...] = ()
    """More host labels (``power``, ``cooling``) whose hosts fail together. They are not used for placement, and may
    overlap.
    """

    @model_validator(mode="after")
    def _levels_make_sense(self) -> Self:
        if len(set(self.levels)) != len(self.levels) or not {"leaf", "spine"} <= set(self.levels):
            raise ValueError(f"levels must name leaf, spine and each level once, not {', '.join(self.levels)}")
        if taken := _RESERVED & set(self.levels):
            raise ValueError(f"{', '.join(sorted(taken))}: these levels are built in")
        if taken := (_RESERVED | set(self.levels)) & set(self.failure_levels):
            raise ValueError(f"{', '.join(sorted(taken))}: these are levels already, leave them out of failure_levels")
        every = (*self.levels, *self.failure_levels)
        if unknown := {level for rule in self.rules for level in rule.domains} - set(every):
            raise ValueError(f"rules name unknown levels {', '.join(sorted(unknown))}; there are: {', '.join(every)}")
        return self


class Fabric:
    """Gives each domain a number, so that arrays can hold it.

    The name of a domain must be unique only inside the domains of the later levels. A host whose domain is not known
    shares it with the hosts of its domain one level nearer, because one leaf has one spine, whatever its name.
    Otherwise it has a domain of its own.
    """

    def __init__(self, config: FabricConfig | None = None) -> None:
        self.config = config or FabricConfig()
        self.levels = (NVLINK, *self.config.levels)
        self._rules = [(re.compile(translate(rule.hosts)), rule.domains) for rule in self.config.rules]
        self._numbers: dict[Sequence[str | None], int] = {}
        self._keys: list[Sequence[str | None]] = []

    def reconfigured(self, config: FabricConfig) -> Fabric:
        """Return the fabric for ``config``. A domain that is in both keeps its number."""
        fabric = Fabric(config)
        fabric._numbers, fabric._keys = self._numbers, self._keys
        return fabric

    def locate(self, host: str, labels: Mapping[str, str]) -> tuple[int, ...]:
        """Return the numbers of a host's domains, one per level. ``labels``: see :meth:`labels_of`."""
        names = [labels.get(level) for level in self.config.levels]
        nvlink_domain = labels.get(NVLINK)
        keys: list[tuple[str | None, ...]] = [(NVLINK, nvlink_domain) if nvlink_domain else (NVLINK, None, host)]
        nearer: tuple[str | None, ...] = (host,)
        for number, (level, name) in enumerate(zip(self.config.levels, names, strict=True)):
            nearer = (level, *names[number:]) if name is not None else (level, None, *nearer)
            keys.append(nearer)
        return tuple(self._number(key) for key in keys)

    def labels_of(self, row: HostRow) -> dict[str, str]:
        """Return all that is known of where a host is: its labels, and the domains of the fabric."""
        reported = {**row.inventory.labels, **{k: v for k, v in (("leaf", row.leaf), ("spine", row.spine)) if v}}
        reported.pop(NVLINK, None)
        if row.inventory.nvlink_domain:
            reported[NVLINK] = row.inventory.nvlink_domain
        for hosts, where in self._rules:
            if hosts.match(row.name):
                reported.update(where)
        return reported

    def name(self, number: int) -> str:
        """Return a domain in words, e.g. ``leaf l7``, or ``spine of leaf l7`` if its own name is not known."""
        level, name, *nearer = self._keys[number]
        if name is not None:
            return f"{level} {name}"
        return f"{level} of {nearer[0] if len(nearer) == 1 else self.name(self._numbers[tuple(nearer)])}"

    def _number(self, key: Sequence[str | None]) -> int:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return number
