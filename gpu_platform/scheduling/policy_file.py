"""A policy as people write it: the fields of :class:`Policy` in YAML, in the settings or in a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.scheduling.backfilling.backfill import BACKFILLS
from gpu_platform.scheduling.plugin_loading import load_plugins
from gpu_platform.scheduling.policy import WEIGHTS, Policy, build_framework
from gpu_platform.scheduling.queueing.job_queue import ORDERS

_POLICY = TypeAdapter(Policy)


def read_policy(content: Mapping[str, Any], what: str = "the policy") -> Policy:
    """``weights`` may also be the name of a set of them, or name scores of other packages (entry points).

    Raises InvalidRequest, saying what there is.
    """
    known = [entry.name for entry in fields(Policy) if entry.name != "plugins"]
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
            given["plugins"] = {name: score for name, score in load_plugins().items() if name in weights}
        policy = _POLICY.validate_python(given)
        build_framework(policy)  # finds unknown scores
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        raise InvalidRequest(f"{what}: {'; '.join(problems)}") from error
    except ValueError as error:
        raise InvalidRequest(f"{what}: {error}") from error
    for name, value, allowed in (("queue order", policy.order, ORDERS), ("backfill", policy.backfill, BACKFILLS)):
        if value not in allowed:
            raise InvalidRequest(f"{what}: there is no {name} {value!r}; there are: {', '.join(allowed)}")
    return policy
