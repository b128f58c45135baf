"""The policies that are compared: policy files, queue orders, and settings over the given policy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.inputs.files import load_policy

_NEXT_SETTING = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)")
"""A comma between two settings. Commas inside a YAML value stay: ``filters=[a,b],order=fcfs`` is two settings."""


@dataclass(frozen=True)
class NamedPolicy:
    """One policy of a comparison."""

    name: str
    policy: Policy
    note: str = ""
    """What its name does not say."""


def policies_to_compare(
    given: str,
    others: Sequence[str] = (),
    settings: Iterable[str] = (),
    default: Mapping[str, Any] | None = None,
) -> list[NamedPolicy]:
    """Return the given policy, and then one for each of ``others``.

    ``given``: a policy file, or the name of a queue order. ``others``: the same, or settings that the given policy
    gets in addition, e.g. ``backfill=none,order=fcfs``. ``settings`` count in all policies. ``default``: the fields of
    the policy whose order a name replaces. Raises NotFound and InvalidRequest.
    """
    settings = list(settings)
    found = [_named(given, settings, default)]
    for other in others:
        if "=" in other and not Path(other).is_file():
            own = [setting.strip() for setting in _NEXT_SETTING.split(other)]
            _, policy = load_policy(given, [*settings, *own], default, called=other)
            found.append(NamedPolicy(other, policy))
        else:
            found.append(_named(other, settings, default))
    return _with_different_names(found)


def _named(name: str, settings: list[str], default: Mapping[str, Any] | None) -> NamedPolicy:
    label, policy = load_policy(name, settings, default)
    if name == "default" or Path(name).is_file():
        return NamedPolicy(label, policy)
    base = "the snapshot's policy" if default else "the default policy"
    note = f"{label} is {base} with order={policy.order}: its backfill is still {policy.backfill}"
    if policy.order == "fcfs" and policy.backfill != "none":
        note += ", so jobs may pass others; compare order=fcfs,backfill=none for a queue in which no job does"
    return NamedPolicy(label, policy, note)


def _with_different_names(found: list[NamedPolicy]) -> list[NamedPolicy]:
    seen: Counter[str] = Counter()
    result = []
    for one in found:
        seen[one.name] += 1
        name = one.name if seen[one.name] == 1 else f"{one.name} ({seen[one.name]})"
        result.append(NamedPolicy(name, one.policy, one.note))
    return result
