"""Search attributes of JobWorkflow: by these an operator can search and sort jobs in the Temporal UI."""

from __future__ import annotations

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState

NAMESPACE = SearchAttributeKey.for_keyword("GpuPlatformNamespace")
USER = SearchAttributeKey.for_keyword("GpuPlatformUser")
STATE = SearchAttributeKey.for_keyword("GpuPlatformState")
MODEL = SearchAttributeKey.for_keyword("GpuPlatformModel")
GPUS = SearchAttributeKey.for_int("GpuPlatformGpus")
HOSTS = SearchAttributeKey.for_keyword_list("GpuPlatformHosts")

ALL = (NAMESPACE, USER, STATE, MODEL, GPUS, HOSTS)


def of_submission(spec: JobSpec) -> TypedSearchAttributes:
    """The search attributes that are known before placement. The workflow updates STATE and HOSTS later."""
    pairs: list[SearchAttributePair] = [
        SearchAttributePair(NAMESPACE, spec.namespace),
        SearchAttributePair(USER, spec.user),
        SearchAttributePair(STATE, JobState.PENDING.value),
        SearchAttributePair(GPUS, spec.gpu_count),
    ]
    if spec.gpus.model:
        pairs.append(SearchAttributePair(MODEL, spec.gpus.model))
    return TypedSearchAttributes(pairs)


async def find_missing(client: Client) -> dict[str, IndexedValueType.ValueType]:
    """The attributes that the Temporal namespace does not have yet, with their types.

    Raises :class:`temporalio.service.RPCError` if Temporal is away or does not permit it.
    """
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    return {
        key.name: IndexedValueType.ValueType(key.indexed_value_type)
        for key in ALL
        if key.name not in known.custom_attributes
    }


async def register(client: Client) -> None:
    """Add the attributes that the Temporal namespace does not have yet. It is safe to call this concurrently.

    Raises :class:`temporalio.service.RPCError` if Temporal is away or does not permit it.
    """
    missing = await find_missing(client)
    if not missing:
        return
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
