"""State changes that a statement makes by itself, without reading the row first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sqlalchemy import ColumnElement, case, true

from gpu_platform.domain.states import GpuState, HostState, JobState, check_transition

_State = TypeVar("_State", JobState, GpuState, HostState)


def next_state(
    column: ColumnElement[str], steps: Mapping[_State, _State], when: ColumnElement[bool] | None = None
) -> ColumnElement[str]:
    """What a statement writes to ``column``: the state after ``steps`` where ``when`` holds, else the one it has.

    Raises :class:`IllegalTransition` for a step that the table does not have, when the statement is built.
    """
    for current, wanted in steps.items():
        check_transition("a statement of the store", current, wanted)
    condition = true() if when is None else when
    return case(*(((column == a.value) & condition, b.value) for a, b in steps.items()), else_=column)
