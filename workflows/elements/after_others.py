"""For what an array waits: for jobs and other arrays before its first element, or for each element of another array."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from workflows.attempts.dependencies import until_others_ended
from workflows.steps import database_step

with workflow.unsafe.imports_passed_through():
    from activities.arrays import ArrayActivities, ChosenIndices, ReadyIndices, ReadyQuestion
    from gpu_platform.domain.jobs.dependency import DependencyKind
    from gpu_platform.domain.jobs.index_set import IndexSet
    from gpu_platform.domain.jobs.spec import JobSpec


class AfterOthers:
    """Looks whether an array may go on. The leader tells it (``told``) when there is something new."""

    def __init__(self, array_id: str, spec: JobSpec, since: int) -> None:
        """``since``: as far as an earlier run of the workflow has come; see :class:`ReadyQuestion`."""
        self._id, self.since = array_id, since
        self.whole = any(one.kind is not DependencyKind.EACH for one in spec.after)
        """It waits for something before its first element."""
        self.each = any(one.kind is DependencyKind.EACH for one in spec.after)
        """Its elements wait for those of another array."""
        self.told = True
        self.why_never = ""
        """Why its other elements never start. Empty: they may, or there are none."""
        self._last = ReadyIndices()

    async def wait(self, stopped: Callable[[], bool]) -> str | None:
        """Wait until the first element may start. Returns why it never may. None: it may, or the array was stopped."""
        why = await until_others_ended(
            self._id,
            begin_to_look=self._begin_to_look,
            is_told=lambda: self.told,
            is_stopped=stopped,
            show=workflow.set_current_details,
        )
        self.told = True
        return why

    def _begin_to_look(self) -> None:
        self.told = False

    def asks(self, room: int) -> bool:
        """True if it is worth asking which elements may be made."""
        return self.each and (self.told or self._last.again or (self._last.more and room > 0))

    async def choose(self, room: int, skipped: str) -> tuple[ChosenIndices | None, str]:
        """Which elements are to be made now, and which of ``skipped`` are still to be looked at. None: none."""
        self.told = False
        asked = ReadyQuestion(array_id=self._id, since=self.since, room=room, skipped=skipped)
        self._last = found = await database_step(
            ArrayActivities.ready_elements, asked, summary="Which elements of the other array have ended?"
        )
        self.since = found.since
        if found.over:
            self.why_never = found.why_never
        chosen = found.chosen if found.chosen.queued or found.chosen.cancelled else None
        return chosen, found.skips_left


def united(one: str, other: str) -> str:
    """Both sets of indices, as texts, together."""
    if not one or not other:
        return one or other
    return str(IndexSet.of([*IndexSet.parse(one), *IndexSet.parse(other)]))
