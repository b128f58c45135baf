"""Accepts arrays, interrupts them, and runs some of their elements again: see :mod:`service.operations.submission`."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, Unavailable
from gpu_platform.domain.jobs.array import Array, ArraySpec
from gpu_platform.domain.jobs.array_steps import ArrayInput, ElementsInterrupt
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.observability import bound, get_logger
from gpu_platform.store.jobs import arrays, counterparts, interrupts
from gpu_platform.store.jobs.idempotency import IdempotencyKey
from gpu_platform.temporal.job_start import ArraySignal
from service.context import ServiceContext, now
from service.operations import submission
from service.operations.ids import new_array_id
from service.operations.recorded import start_recorded
from service.temporal import WorkflowGone

Verb = Literal["cancel", "kill"]

log = get_logger(__name__)


class ArrayToAccept(NamedTuple):
    """An array as it is to be accepted: with the namespace, the user and the cluster's defaults."""

    spec: JobSpec
    array: ArraySpec
    repeats: str | None = None


async def submit(
    context: ServiceContext, asked: ArrayToAccept, actor: str, key: IdempotencyKey | None
) -> tuple[Array, bool]:
    """Store the array durably and start its workflow. Returns the array, and whether it is new.

    Raises :class:`InvalidRequest`, :class:`IdempotencyConflict` and :class:`Unavailable`. Then nothing has changed.
    """
    array, created = await run_in_threadpool(_record, context, asked, actor, key)
    if array.state is not ArrayState.PENDING:
        return array, created
    with bound(array=array.id):
        array = await start_recorded(
            array,
            created,
            start=partial(context.workflows.start_array, await run_in_threadpool(ArrayInput.of, array, asked.array)),
            withdraw=lambda made=array.id: arrays.withdraw_array(context.store, made, now=now()),
            read=partial(arrays.get_array, context.store, array.id),
        )
        log.info("array.accepted", name=array.spec.name, elements=array.size, created=created)
    return array, created


async def interrupt(
    context: ServiceContext, array_id: str, verb: Verb, order: Interrupt, elements: str | None
) -> Array:
    """Cancel or kill the array, or only these elements. Returns the array as it is now; the effect follows soon.

    Raises :class:`NotFound`, :class:`InvalidRequest`, :class:`IllegalTransition` and :class:`Unavailable`.
    """
    array = await run_in_threadpool(arrays.get_array, context.store, array_id)
    if array.state is ArrayState.CANCELLED and elements is None:
        return array
    _check_not_ended(array)
    # First into the database: control signs no stop for a signal that only Temporal knows.
    signal: ArraySignal = (verb, order)
    if elements is not None:
        elements = str(await run_in_threadpool(named_elements, context, array_id, elements))
        signal = (f"{verb}_elements", ElementsInterrupt(indices=elements, interrupt=order))
    await run_in_threadpool(_record_interrupt, context, array_id, verb, order, elements)
    try:
        # A workflow that was not started yet, or that Temporal lost, is started with the signal.
        whole = await run_in_threadpool(arrays.read_whole, context.store, array_id)
        given = ArrayInput.of(array, whole.array, takes_over=array.state is not ArrayState.PENDING)
        await context.workflows.start_array(given, signal)
    except WorkflowGone as error:
        array = await run_in_threadpool(arrays.get_array, context.store, array_id)
        _check_not_ended(array)
        raise Unavailable(
            f"the workflow of array {array_id} has ended, and the array has not: the leader looks after it; try again "
            "in a minute"
        ) from error
    log.info("array.interrupted", array=array_id, verb=verb, actor=order.actor, elements=elements)
    return array


def repetition(context: ServiceContext, array_id: str, elements: str | None) -> ArrayToAccept:
    """An array that runs these elements of another one again; None: those that have FAILED.

    Raises :class:`NotFound`, and :class:`InvalidRequest` if there is nothing to repeat, or an element has not ended.
    """
    whole, array = arrays.read_whole(context.store, array_id), arrays.get_array(context.store, array_id)
    if elements is None:
        indices = IndexSet.of(arrays.indices_in(context.store, array_id, [JobState.FAILED]))
        if not indices:
            raise InvalidRequest(
                f"no element of array {array_id} has FAILED, so there is nothing to run again; name elements to run "
                "others again"
            )
    else:
        indices = _named(array_id, whole.array, elements)
        live = [state for state in JobState if not state.is_terminal]
        running = arrays.indices_in(context.store, array_id, live)
        first = next((index for index in running if index in indices), None)
        first = first if first is not None or array.state.is_terminal else _not_made(context, array_id, indices)
        if first is not None:
            raise InvalidRequest(f"element {first} of array {array_id} has not ended: wait for it, or cancel it")
    spec = whole.spec.model_copy(update={"hold": False})
    return ArrayToAccept(_freed(context, array_id, spec, indices), whole.array.only(indices), array_id)


def _freed(context: ServiceContext, array_id: str, spec: JobSpec, indices: IndexSet) -> JobSpec:
    """What the elements share, without the array for whose elements they wait: of these indices all have COMPLETED.

    Raises :class:`InvalidRequest` if one has not.
    """
    other = counterparts.after_array(spec)
    if other is None:
        return spec
    completed = set(arrays.indices_in(context.store, other, [JobState.COMPLETED]))
    if (first := next((index for index in indices if index not in completed), None)) is not None:
        raise InvalidRequest(
            f"element {first} of array {array_id} comes after element {first} of {other}, which has not COMPLETED: run "
            f"that again first (jobs retry {other} --elements {first}), and submit these elements as a new array"
        )
    after = tuple(one for one in spec.after if one.job_id != other)
    return spec.model_copy(update={"after": after, "if_unmet": spec.if_unmet if after else None})


def _not_made(context: ServiceContext, array_id: str, indices: IndexSet) -> int | None:
    """The first of these elements that has not entered the queue. None: all have."""
    made = set(arrays.indices_in(context.store, array_id, [*JobState]))
    return next((index for index in indices if index not in made), None)


def _record(
    context: ServiceContext, asked: ArrayToAccept, actor: str, key: IdempotencyKey | None
) -> tuple[Array, bool]:
    submission.check_can_run(context, asked.spec, actor)
    return arrays.submit_array(
        context.store,
        new_array_id(),
        asked.spec,
        asked.array,
        actor=actor,
        now=now(),
        idempotency_key=key,
        repeats=asked.repeats,
    )


def _record_interrupt(
    context: ServiceContext, array_id: str, verb: Verb, order: Interrupt, elements: str | None
) -> None:
    key = AttemptKey(job_id=array_id, attempt=0)
    interrupts.record_interrupt(context.store, key, verb, order.actor, order.reason, now(), elements=elements)


def named_elements(context: ServiceContext, array_id: str, elements: str) -> IndexSet:
    """The indices that were named. Raises :class:`NotFound`, and :class:`InvalidRequest` unless the array has all."""
    return _named(array_id, arrays.read_whole(context.store, array_id).array, elements)


def _named(array_id: str, array: ArraySpec, elements: str) -> IndexSet:
    """The indices that were named. Raises :class:`InvalidRequest` unless the array has all of them."""
    try:
        indices = IndexSet.parse(elements)
    except ValueError as error:
        raise InvalidRequest(f"elements: {error}") from None
    unknown = indices.missing_from(array.index_set)
    if unknown is not None:
        raise InvalidRequest(f"array {array_id} has no element {unknown}: its indices are {array.indices[:200]}")
    return indices


def _check_not_ended(array: Array) -> None:
    if array.state.is_terminal:
        raise IllegalTransition(
            subject=f"array {array.id}",
            current=array.state.value,
            wanted=ArrayState.CANCELLED.value,
            allowed=[],
            message=f"array {array.id} is {array.state} already: there is nothing left to stop",
        )
