"""Long searches in steps, so that a decision does a bounded part of one, and a later decision goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Executor
from typing import Generic, TypeVar

T = TypeVar("T")

Steps = Generator[int | None, None, T]
"""A search. After each step it yields how many jobs or hosts it looked at, or None: it waits for something that is
computed aside. It returns its answer.
"""


def computed(work: Callable[[], T], aside: Executor | None) -> Steps[T]:
    """Let ``aside`` do the work, and wait for it. None: do it now, so that the same calls give the same answers."""
    if aside is None:
        return work()
    answer = aside.submit(work)
    try:
        while not answer.done():
            yield None
        return answer.result()
    finally:
        answer.cancel()  # the search was given up: what has not begun need not be done


class Search(Generic[T]):
    """A search that is done in parts. Between the parts the cluster may change, so its answer must be checked."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._answer: T | None = None
        self.has_ended = False

    def go_on(self, allowance: float) -> float:
        """Do steps until they looked at ``allowance`` jobs and hosts, or wait for something. Return what is left of the
        allowance.
        """
        while allowance > 0 and not self.has_ended:
            try:
                cost = next(self._steps)
            except StopIteration as end:
                self.has_ended, self._answer = True, end.value
                break
            if cost is None:
                break
            allowance -= max(cost, 1)
        return max(allowance, 0)

    @property
    def answer(self) -> T:
        """The answer. Only of a search that has ended."""
        assert self.has_ended, "the search goes on"
        return self._answer  # pyright: ignore[reportReturnType]


def at_once(steps: Steps[T]) -> T:
    """Do all steps now. Nothing of them may be computed aside."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
