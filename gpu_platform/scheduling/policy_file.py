"""A policy as people write it: the fields of :class:`Policy` in YAML, in the settings or in a file of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.plugin import PluginFault
from gpu_platform.scheduling.backfilling.backfill import BACKFILLS
from gpu_platform.scheduling.placing.framework import NamedFilter
from gpu_platform.scheduling.plugin_loading import load_filters, load_scores
from gpu_platform.scheduling.policy import NOT_WRITTEN, WEIGHTS, Policy, build_framework, unknown_scores
from gpu_platform.scheduling.queueing.job_queue import ORDERS

_POLICY = TypeAdapter(Policy)


def is_broken(fault: PluginFault) -> bool:
    """True if the plugin is installed but fails. The leader goes on without it. One that is not installed is an
    error in the policy."""
    return fault.installed


def read_policy(
    content: Mapping[str, Any],
    what: str = "the policy",
    *,
    do_without: Callable[[PluginFault], bool] = lambda fault: False,
) -> Policy:
    """Read a policy. ``weights`` may also be the name of a set of weights. ``weights`` and ``filters`` may name
    plugins.

    ``do_without``: may a plugin with that fault be switched off? Raises InvalidRequest, which says what is allowed.
    """
    known = [entry.name for entry in fields(Policy) if entry.name not in NOT_WRITTEN]
    if unknown := set(content) - set(known):
        raise InvalidRequest(f"{what} has no {', '.join(map(repr, sorted(unknown)))}; there is: {', '.join(known)}")
    given = dict(content)
    weights = given.get("weights")
    if isinstance(weights, str):
        if weights not in WEIGHTS:
            raise InvalidRequest(f"{what} has no set of weights {weights!r}; there are: {', '.join(WEIGHTS)}")
        given["weights"] = weights = dict(WEIGHTS[weights])
    try:
        if isinstance(weights, Mapping):
            given["plugins"], given["plugin_faults"] = load_scores(weights)
        policy = _with_filters(_POLICY.validate_python(given))
        for name in sorted(unknown_scores(policy)):
            missing = PluginFault(kind="score", name=name, error="not installed", installed=False)
            policy = policy.without(missing) if do_without(missing) else policy
        for fault in policy.plugin_faults:
            if not do_without(fault):
                raise InvalidRequest(f"{what}: the {fault.kind} plugin {fault.name} does not work: {fault.error}")
        build_framework(policy)  # raises an error that lists the known scores
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        raise InvalidRequest(f"{what}: {'; '.join(problems)}") from error
    except ValueError as error:
        raise InvalidRequest(f"{what}: {error}") from error
    for name, value, allowed in (("queue order", policy.order, ORDERS), ("backfill", policy.backfill, BACKFILLS)):
        if value not in allowed:
            raise InvalidRequest(f"{what}: there is no {name} {value!r}; there are: {', '.join(allowed)}")
    return policy


def _with_filters(policy: Policy) -> Policy:
    found, faults = load_filters(policy.filters)
    filters: tuple[NamedFilter, ...] = tuple(found.values())
    return replace(policy, site_filters=filters, plugin_faults=(*policy.plugin_faults, *faults))
