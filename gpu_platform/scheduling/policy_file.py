"""A policy as people write it: the fields of :class:`Policy` in YAML, in the settings or in a file of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpu_platform.domain.documents import wrong_fields
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.plugin import PluginFault, PluginKind
from gpu_platform.scheduling.backfilling.backfill import BACKFILLS
from gpu_platform.scheduling.placing.framework import NamedFilter
from gpu_platform.scheduling.plugin_loading import load_binder, load_filters, load_order_factors, load_scores
from gpu_platform.scheduling.policy import (
    NOT_WRITTEN,
    WEIGHTS,
    Policy,
    build_framework,
    build_order,
    unknown_factors,
    unknown_scores,
)
from gpu_platform.scheduling.queueing.queue_order import OrderFactor

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
    """Read a policy. ``weights`` may also be the name of a set of weights. ``weights``, ``filters``,
    ``binder`` and ``order_weights`` may name plugins.

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
        policy = _without_missing(
            _with_order_factors(_with_filters_and_binder(_POLICY.validate_python(given))), do_without
        )
        for fault in policy.plugin_faults:
            if not do_without(fault):
                raise InvalidRequest(f"{what}: the {fault.kind} plugin {fault.name} does not work: {fault.error}")
        build_framework(policy)  # raises an error that lists the known scores
        build_order(policy)  # the same for orders and their factors
    except ValidationError as error:
        raise InvalidRequest(f"{what}: {wrong_fields(error)}") from error
    except ValueError as error:
        raise InvalidRequest(f"{what}: {error}") from error
    if policy.backfill not in BACKFILLS:
        raise InvalidRequest(f"{what}: there is no backfill {policy.backfill!r}; there are: {', '.join(BACKFILLS)}")
    return policy


def _without_missing(policy: Policy, do_without: Callable[[PluginFault], bool]) -> Policy:
    """Return the policy without the scores and order factors that are not installed, where ``do_without`` allows."""
    unknown: tuple[tuple[PluginKind, set[str]], ...] = (
        ("score", unknown_scores(policy)),
        ("order", unknown_factors(policy)),
    )
    for kind, names in unknown:
        for name in sorted(names):
            missing = PluginFault(kind=kind, name=name, error="not installed", installed=False)
            policy = policy.without(missing) if do_without(missing) else policy
    return policy


def _with_order_factors(policy: Policy) -> Policy:
    found, faults = load_order_factors(unknown_factors(policy))
    factors: dict[str, OrderFactor] = dict(found)
    return replace(policy, order_plugins=factors, plugin_faults=(*policy.plugin_faults, *faults))


def _with_filters_and_binder(policy: Policy) -> Policy:
    found, faults = load_filters(policy.filters)
    filters: tuple[NamedFilter, ...] = tuple(found.values())
    binder, without = load_binder(policy.binder)
    return replace(
        policy, site_filters=filters, site_binder=binder, plugin_faults=(*policy.plugin_faults, *faults, *without)
    )
