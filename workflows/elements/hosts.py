"""Elements on their hosts: launched and watched many at once, and stopped one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from activities.node.elements import ElementActivities
from activities.reservation import EndAttempt
from gpu_platform.domain.contracts import AttemptKey, elements_watch_id, node_task_queue
from gpu_platform.domain.jobs.array_steps import ElementEnded, ElementLaunched, ElementsLaunch, ElementsWatch
from gpu_platform.domain.jobs.attempt import HostPlan, WatchRequest
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import counted
from gpu_platform.temporal.payloads.unreadable import UnreadablePayload
from workflows import policies
from workflows.attempts.answers import UnreadableAnswer, of_elements_launch, of_elements_watch
from workflows.attempts.back_off import back_off
from workflows.attempts.compensations import end_of, stop_hosts
from workflows.attempts.endings import Ending, after_failure, after_rank_failure, interruption
from workflows.attempts.failures import HostStepFailed, step_failure
from workflows.attempts.launching import on_host
from workflows.attempts.watching import completed
from workflows.elements.element import Element, Standing
from workflows.steps import cut_summary


class ElementHosts:
    """Starts, watches and stops elements. ``ended`` hears how each of them ended, ``runs`` that its ranks run."""

    def __init__(self, runs: Callable[[Element], None], ended: Callable[[Element, EndAttempt], None]) -> None:
        self._runs, self._ended = runs, ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._launching: set[str] = set()
        """Hosts on which a launch is under way."""
        self._ready: dict[str, list[tuple[Element, HostPlan]]] = {}
        """Host -> elements that are launched there next. So short elements come in large batches."""
        self._looks: dict[str, int] = {}
        """Host -> how often something has happened to its elements that their watches must look at."""
        self._cut: set[str] = set()
        """Names of watches that were cancelled. Temporal refuses a second one while the host has not given it up."""
        self._busy = 0
        self.error: BaseException | None = None
        """A mistake in this code. The workflow raises it, so that Temporal tries its task again."""
        self.stops: list[asyncio.Task[Any]] = []
        """Stops that were sent to lost hosts. Nobody waits for them."""

    @property
    def is_busy(self) -> bool:
        """True while something is launched or stopped: then the workflow cannot continue as new."""
        return self._busy > 0

    def launch(self, started: Sequence[tuple[Element, HostPlan]]) -> None:
        """Launch elements that hold their places."""
        for element, plan in started:
            element.standing = Standing.LAUNCHES
            element.ranks = [rank.rank for rank in plan.ranks]
            element.attempt.may_run = True
            self._ready.setdefault(plan.host, []).append((element, plan))
        for host in [host for host in self._ready if host not in self._launching]:
            self._launching.add(host)
            self._begin(self._launch_all(host), busy=True)

    def watch(self, elements: Sequence[Element]) -> None:
        """Watch elements whose ranks run."""
        by_host: dict[str, list[Element]] = {}
        for element in elements:
            element.standing, element.ran = Standing.RUNS, True
            by_host.setdefault(element.host, []).append(element)
        for host, batch in by_host.items():
            self._begin(self._watch(host, batch), busy=False)

    def look(self, element: Element) -> None:
        """A signal came for the element: its watch must look at it."""
        self._looks[element.host] = self._looks.get(element.host, 0) + 1

    async def _launch_all(self, host: str) -> None:
        """Launch what is ready on the host, one batch after the other."""
        try:
            while batch := self._ready.pop(host, None):
                await self._launch(host, batch)
        finally:
            self._launching.discard(host)

    async def _launch(self, host: str, batch: list[tuple[Element, HostPlan]]) -> None:
        request = ElementsLaunch(plans=[plan for _, plan in batch])

        def start() -> workflow.ActivityHandle[list[ElementLaunched]]:
            return workflow.start_activity_method(
                ElementActivities.launch_elements,
                request,
                task_queue=node_task_queue(host),
                summary=cut_summary(f"Launch of {counted(len(batch), 'element')} on {host}"),
                **policies.HOST_STEP,
            )

        try:
            launched = await on_host(host, start, start())
        except FailureError as error:
            failure = step_failure(error)
            for element, _ in batch:
                self._close(element, after_failure(failure, element.attempt.spec, element.progress))
            return
        answers = of_elements_launch({element.key: plan for element, plan in batch}, launched)
        running: list[Element] = []
        for element, _ in batch:
            one = answers.get(element.key)
            if one is None:
                self._give_up(host, [element], UnreadableAnswer(f"host {host} did not answer for {element.key}"))
            elif one.failure is not None:
                self._close(element, after_failure(one.failure, element.attempt.spec, element.progress))
            elif one.ended is not None:
                element.ran = True
                self._note_end(element, one.ended)
            else:
                running.append(element)
                element.attempt.prepared = one.prepared
                self._runs(element)
        self.watch(running)

    async def _watch(self, host: str, batch: list[Element]) -> None:
        watched = {element.key: element for element in batch}
        while watched:
            for element in [one for one in watched.values() if one.attempt.interrupted()]:
                del watched[element.key]
                self._close(element, interruption(element.attempt, element.progress))
            if not watched:
                return None
            seen = self._looks.get(host, 0)
            name = self._name_of_watch(host, next(iter(watched)))
            watch = self._start_watch(host, list(watched.values()), name)
            await workflow.wait_condition(partial(self._has_news, watch, host, seen))
            if not watch.done():
                if name is not None:
                    self._cut.add(name)
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            if (failed := _failure_of(watch)) is not None:
                if is_cancelled_exception(failed):
                    continue
                return self._give_up(host, list(watched.values()), failed)
            known = {key: (one.ranks, one.attempt.gpu_uuids_on(host)) for key, one in watched.items()}
            answer = watch.result()
            if isinstance(answer, UnreadablePayload) or not (ended := of_elements_watch(host, known, answer)):
                wrong = UnreadableAnswer(f"host {host} does not say which elements have ended")
                return self._give_up(host, list(watched.values()), wrong)
            for key, one in ended.items():
                self._note_end(watched.pop(key), one)
        return None

    def _has_news(self, watch: workflow.ActivityHandle[list[ElementEnded]], host: str, seen: int) -> bool:
        return watch.done() or self._looks.get(host, 0) != seen

    def _name_of_watch(self, host: str, first: AttemptKey) -> str | None:
        name = elements_watch_id(host, first)
        return None if name in self._cut else name

    def _start_watch(
        self, host: str, elements: list[Element], name: str | None
    ) -> workflow.ActivityHandle[list[ElementEnded]]:
        watches = [WatchRequest(key=one.key, host=host, ranks=one.ranks) for one in elements]
        return workflow.start_activity_method(
            ElementActivities.watch_elements,
            ElementsWatch(watches=watches),
            task_queue=node_task_queue(host),
            activity_id=name,
            summary=cut_summary(f"Health watch of {counted(len(elements), 'element')} on {host}"),
            **(policies.WATCH_ELEMENTS if name is None else policies.WATCH),
        )

    def _give_up(self, host: str, elements: list[Element], error: BaseException) -> None:
        failed = HostStepFailed(host)
        failed.__cause__ = error
        for element in elements:
            ending = after_failure(step_failure(failed), element.attempt.spec, element.progress)
            self._close(element, ending)

    def _note_end(self, element: Element, end: ElementEnded) -> None:
        """The ranks of the element have ended, or one has failed."""
        attempt, failed = element.attempt, end.exits.first_failure
        if failed is None:
            self._close(element, completed(attempt, [end.exits]))
            return
        if end.stopped:
            attempt.may_run = False
            attempt.usage = {end.exits.host: end.exits.usage}
        self._close(element, after_rank_failure(failed, attempt, element.progress))

    def _close(self, element: Element, ending: Ending) -> None:
        """Compensate: stop what may run, then hand the end to the next step of the array."""
        element.standing = Standing.ENDS
        back_off(ending, element.attempt, element.progress)
        if lost_its_host(element, ending):
            element.stays = True
            element.progress.excluded_hosts = []  # the host is LOST: nothing is placed there until it is well again
        ending.ended_before_running = element.ran and not element.is_marked
        if element.attempt.may_run:
            self._begin(self._stop(element, ending), busy=True)
        else:
            self._ended(element, end_of(element.attempt, ending, element.progress))

    async def _stop(self, element: Element, ending: Ending) -> None:
        await stop_hosts(element.attempt, ending)
        self.stops = [task for task in [*self.stops, *element.attempt.stopping] if not task.done()]
        self._ended(element, end_of(element.attempt, ending, element.progress))

    def _begin(self, work: Coroutine[Any, Any, None], *, busy: bool) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._busy += busy

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._busy -= busy
            if not task.cancelled() and (error := task.exception()) is not None:
                self.error = error

        task.add_done_callback(done)


def lost_its_host(element: Element, ending: Ending) -> bool:
    """True if the next attempt only needs another host."""
    failure = ending.failure
    if ending.state is not JobState.QUEUED or failure is None:
        return False
    return failure.gpu_uuid is None and failure.host in element.attempt.lost


def _failure_of(watch: workflow.ActivityHandle[list[ElementEnded]]) -> BaseException | None:
    return asyncio.CancelledError() if watch.cancelled() else watch.exception()
