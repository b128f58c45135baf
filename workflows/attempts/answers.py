"""What a host answers to a step is believed for the host that was asked, and for the ranks that it was asked about.

A host may be in wrong hands. Whoever uses an answer takes it through the function for its kind: names of other hosts,
of their GPUs and of other ranks are replaced or left out, and an answer that nobody can read is a failure of the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from temporalio.exceptions import FailureError

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.bounds import LONGEST_TEXT
from gpu_platform.domain.jobs.array_steps import ElementEnded, ElementLaunched
from gpu_platform.domain.jobs.attempt import HostExits, HostPlan, Launched, Prepared, RankExit, Stopped
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.temporal.payloads.unreadable import UnreadablePayload

_MOST = 2**31 - 1

T = TypeVar("T")


class UnreadableAnswer(FailureError):
    """A host answered what nobody can read."""


def readable(host: str, answer: T | UnreadablePayload) -> T:
    """The answer. Raises :class:`UnreadableAnswer`."""
    if isinstance(answer, UnreadablePayload):
        raise UnreadableAnswer(_message(host, answer))
    return answer


def of_prepare(plan: HostPlan, answer: Prepared) -> Prepared:
    """The answer to ``prepare_host``. The workflow fills ``gang``; control signs only addresses that hosts have."""
    port = max(0, min(answer.rendezvous_port, 65_535))
    note = None if answer.resume_note is None else answer.resume_note[:LONGEST_TEXT]
    changes = {"host": plan.host, "gang": [], "rendezvous_port": port, "resume_note": note}
    return answer.model_copy(update=changes)


def of_launch(plan: HostPlan, answer: Launched) -> Launched:
    """The answer to ``launch_ranks``."""
    ranks = _ranks(plan)
    started = [one.model_copy(update={"host": plan.host}) for one in answer.ranks if one.rank in ranks]
    prepared = None if answer.prepared is None else of_prepare(plan, answer.prepared)
    ended = None if answer.ended is None else of_watch(plan.host, ranks, plan.gpu_uuids, answer.ended)
    return Launched(host=plan.host, ranks=started, prepared=prepared, ended=ended)


def of_watch(
    host: str, ranks: Sequence[int], gpus: Collection[str], answer: HostExits | UnreadablePayload
) -> HostExits:
    """The answer to ``watch_ranks`` for these ranks, which have these GPUs of the host."""
    if isinstance(answer, UnreadablePayload):
        return HostExits(host=host, exits=[], first_failure=_nobody_knows(host, ranks, answer))
    return HostExits(
        host=host,
        exits=[_exit(host, ranks, gpus, one) for one in answer.exits if one.rank in ranks],
        first_failure=None if answer.first_failure is None else _exit(host, ranks, gpus, answer.first_failure),
        usage=_usage(host, ranks, answer.usage),
    )


def of_stop(host: str, ranks: Sequence[int], answer: Stopped | UnreadablePayload) -> list[RankUsage]:
    """The usage in the answer to ``stop_ranks``. Nothing else in it is used."""
    return [] if isinstance(answer, UnreadablePayload) else _usage(host, ranks, answer.usage)


def of_elements_launch(
    plans: Mapping[AttemptKey, HostPlan], answer: Sequence[ElementLaunched]
) -> dict[AttemptKey, ElementLaunched]:
    """The answer to ``launch_elements``, for those of these elements that it names: each once."""
    found: dict[AttemptKey, ElementLaunched] = {}
    for one in answer:
        plan = plans.get(one.key)
        if plan is None:
            continue
        ranks = _ranks(plan)
        found[one.key] = ElementLaunched(
            key=one.key,
            ended=None if one.ended is None else _element(one.key, plan.host, ranks, plan.gpu_uuids, one.ended),
            failure=None if one.failure is None else _failure(plan.host, ranks[0], plan.gpu_uuids, one.failure),
            prepared=None if one.prepared is None else of_prepare(plan, one.prepared),
        )
    return found


def of_elements_watch(
    host: str, watched: Mapping[AttemptKey, tuple[Sequence[int], Collection[str]]], answer: Sequence[ElementEnded]
) -> dict[AttemptKey, ElementEnded]:
    """The answer to ``watch_elements``, for those of ``watched`` (element -> its ranks and GPUs) that it names."""
    return {one.key: _element(one.key, host, *watched[one.key], one) for one in answer if one.key in watched}


def _element(
    key: AttemptKey, host: str, ranks: Sequence[int], gpus: Collection[str], ended: ElementEnded
) -> ElementEnded:
    return ElementEnded(key=key, exits=of_watch(host, ranks, gpus, ended.exits), stopped=ended.stopped)


def _ranks(plan: HostPlan) -> list[int]:
    return [one.rank for one in plan.ranks]


def _exit(host: str, ranks: Sequence[int], gpus: Collection[str], said: RankExit) -> RankExit:
    rank = said.rank if said.rank in ranks else ranks[0]
    failure = None if said.failure is None else _failure(host, rank, gpus, said.failure)
    code = _bounded(said.exit_code)
    return said.model_copy(update={"rank": rank, "host": host, "failure": failure, "exit_code": code})


def _failure(host: str, rank: int, gpus: Collection[str], said: Failure) -> Failure:
    changes = {
        "host": None if said.host is None else host,
        "rank": None if said.rank is None else rank,
        "gpu_uuid": said.gpu_uuid if said.gpu_uuid in gpus else None,
        "exit_code": _bounded(said.exit_code),
        "xid": _bounded(said.xid),
        "message": said.message[:LONGEST_TEXT],
    }
    return said.model_copy(update=changes)


def _nobody_knows(host: str, ranks: Sequence[int], answer: UnreadablePayload) -> RankExit:
    failure = Failure(kind=blame(FailureCause.STEP_FAILED), message=_message(host, answer), host=host)
    return RankExit(rank=ranks[0], host=host, exit_code=1, ended_at_ms=0, failure=failure)


def _message(host: str, answer: UnreadablePayload) -> str:
    return f"host {host} answered what nobody can read: {answer.why}"


def _usage(host: str, ranks: Sequence[int], said: Sequence[RankUsage]) -> list[RankUsage]:
    """What each of these ranks used, once."""
    found: dict[int, RankUsage] = {}
    for one in said:
        if one.rank in ranks:
            numbers = {name: _bounded(value) for name, value in one if isinstance(value, int)}
            found[one.rank] = one.model_copy(update={**numbers, "host": host})
    return [found[rank] for rank in sorted(found)]


def _bounded(number: int | None) -> int | None:
    """As a column of the database takes it."""
    return None if number is None else max(-_MOST, min(number, _MOST))
