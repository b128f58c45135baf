"""Which release of the control workers gets the steps of workflows, with Temporal's worker versioning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from temporalio.api.deployment.v1 import RoutingConfig
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.settings import Settings
from gpu_platform.temporal.worker_deployment import UNVERSIONED, command, deployment_name, polling_builds, routing
from workers.doctor.results import Part, Result

NAME = "worker versions"
_NOT_ASKED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)


async def versioning(part: Part, settings: Settings, client: Client) -> list[Result]:
    """The results. None if nobody uses versioning here. Hosts run no workflows, and may not ask."""
    name = deployment_name(settings)
    try:
        found = await routing(client, name)
        builds = await polling_builds(client, name)
    except RPCError as error:
        if error.status in _NOT_ASKED:
            return [part.skipped(NAME, "Temporal does not let this machine ask")]
        return [part.failed(NAME, f"{error.status.name}: {error.message}", "look at Temporal's log")]
    if found is None and not settings.temporal.worker_versioning:
        return []
    return list(_judge(part, settings, found, builds))


def _judge(part: Part, settings: Settings, found: RoutingConfig | None, builds: Sequence[str]) -> Iterator[Result]:
    current = "" if found is None else found.current_deployment_version.build_id
    polling = ", ".join(build or "one without versioning" for build in builds) or "none"
    shown = f"current: {current or 'none'}{_ramp(found)}; workers that ask for steps: {polling}"
    versioned = [build for build in builds if build != UNVERSIONED]
    if current and current not in builds:
        other = versioned[0] if versioned else None
        advice = f"start a control worker of {current}, or `{command(settings, other)}`"
        yield part.failed(NAME, f"{shown}: the current version has no worker, so nothing goes on", advice)
    elif not current and versioned:
        advice = f"`{command(settings, versioned[0])}`; a control worker does so by itself when it starts"
        yield part.failed(NAME, f"{shown}: versions that are not current get no steps", advice)
    elif not current and not builds:
        yield part.failed(NAME, shown, "start a control worker")
    elif current and UNVERSIONED in builds:
        advice = f"set temporal.worker_versioning on all control workers, or end it: `{command(settings, None)}`"
        yield part.warning(NAME, f"{shown}: workers without versioning get no steps", advice)
    else:
        yield part.ok(NAME, shown)


def _ramp(found: RoutingConfig | None) -> str:
    ramping = "" if found is None else found.ramping_deployment_version.build_id
    return f", ramping: {ramping} with {found.ramping_version_percentage:g} %" if found is not None and ramping else ""
