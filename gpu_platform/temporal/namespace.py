"""Temporal's namespace: whether it is there, and the command that makes it."""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeNamespaceResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

ANSWER_WITHIN = timedelta(seconds=5)
RETENTION = "72h"
"""How long Temporal should keep workflows that have ended, for those who look at them."""


async def describe_namespace(client: Client, within: timedelta = ANSWER_WITHIN) -> DescribeNamespaceResponse:
    """What Temporal says of the client's namespace. Raises :class:`temporalio.service.RPCError`."""
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    return await client.workflow_service.describe_namespace(asked, timeout=within)


def is_missing(error: RPCError) -> bool:
    """True if the error says that Temporal has no such namespace, not that it lacks something in one."""
    if error.status is not RPCStatusCode.NOT_FOUND:
        return False
    return any(detail.Is(NamespaceNotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details)


def how_to_make(address: str, namespace: str) -> str:
    """What to do about a namespace that is not there."""
    return (
        f"Temporal at {address} has no namespace {namespace!r} (temporal.namespace). Make it: "
        f"`temporal operator namespace create --address {address} --namespace {namespace} --retention {RETENTION}`"
    )
