"""Which elements of an array are made next: the next indices, or those whose counterparts have ended."""

from __future__ import annotations

from activities.arrays import ArrayStep, ArrayStepDone, ChosenIndices
from gpu_platform.domain.jobs.array_steps import CarriedElements
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.spec import JobSpec
from workflows.elements.after_others import AfterOthers, united

MOST_WAITING = 256
"""How many elements of an array are in the queue at once. So a job that is submitted later does not wait for all of a
long array."""


class ElementMaking:
    """How far the array has been made, and what is left to make.

    ``carried``: as far as earlier runs of the workflow have come. ``at_once``: how many elements may be under way.
    """

    def __init__(self, array_id: str, spec: JobSpec, carried: CarriedElements, at_once: int | None) -> None:
        self.position = carried.position
        """So many elements have been made."""
        self.left = carried.left
        """There are elements that have not been made and that may be made."""
        self.skipped = carried.skipped
        """Indices of elements that were cancelled before they were made."""
        self.skipped_by = Interrupt(actor="array")
        """Who cancelled the last of them."""
        self.after = AfterOthers(array_id, spec, carried.since)
        self.pauses = False
        """No new elements: this run of the workflow is about to continue as new."""
        self._at_once = at_once

    @property
    def is_open(self) -> bool:
        """True if elements may be made, as far as there is room."""
        return self.left and not self.pauses

    def room(self, in_queue: int, under_way: int) -> int:
        """How many elements may be made now, beside those in the queue and all that have not ended."""
        room = MOST_WAITING - in_queue
        if self._at_once is not None:
            room = min(room, self._at_once - under_way)
        return max(room, 0) if self.is_open else 0

    def has_work(self, room: int) -> bool:
        """True if a step may make elements."""
        return self.asks(room) or (not self.after.each and room > 0)

    def asks(self, room: int) -> bool:
        """True if it is worth looking which elements may be made, as they wait for those of another array."""
        return self.is_open and self.after.asks(room)

    async def choose(self, room: int) -> ChosenIndices | None:
        """Which elements are to be made now, if they wait for those of another array. None: none."""
        skipped, self.skipped = self.skipped, ""
        chosen, left = await self.after.choose(room, skipped)
        self.skipped = united(self.skipped, left)
        return chosen

    def skip(self, indices: IndexSet, by: Interrupt) -> None:
        """Make these elements CANCELLED, if they have not been made yet."""
        self.skipped, self.skipped_by = united(self.skipped, str(indices)), by
        self.after.told = True

    def fill(self, step: ArrayStep, chosen: ChosenIndices | None, room: int) -> None:
        """Say in ``step`` what it makes."""
        step.first, step.chosen = self.position, chosen
        if not self.after.each:
            step.add, step.skipped = room, self.skipped

    def note_made(self, done: ArrayStepDone) -> None:
        """Note what a step has made."""
        self.position, self.left = done.position, self.left and done.left > 0
