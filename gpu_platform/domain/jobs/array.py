"""Arrays: one specification for many elements, each of which is a job with an index and parameters of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, field_validator, model_validator

from gpu_platform.domain.jobs.index_set import MAX_INDEX, IndexSet
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.shown import ShownInNotebooks
from gpu_platform.domain.states import TERMINAL_JOB_STATES, ArrayState, JobState
from gpu_platform.domain.texts import check_text

MAX_ELEMENTS = 100_000
"""The most elements of one array."""
MAX_PARAMETER_BYTES = 4 * 1024 * 1024
"""The most bytes of all parameters of an array together."""
MAX_PARAMETERS = 200_000
"""The most values of all elements of an array together."""
MAX_PARAMETER_NAMES = 256
"""The most parameters of an array."""
SHOWN_INDICES = 200
"""So many characters of the indices are shown in answers."""
RESERVED_NAMES = frozenset({"index", "count", "array"})
"""Placeholders that every element has; no parameter may have such a name."""
PARAMETER_PREFIX = "GPU_PLATFORM_PARAM_"
"""An element sees its parameter ``lr`` as the variable ``GPU_PLATFORM_PARAM_LR``."""
_PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class OnFailure(StrEnum):
    """What happens to the rest of an array when an element has failed for good."""

    CONTINUE = "continue"
    """The other elements go on."""
    STOP = "stop"
    """Elements that run are cancelled, and no other one starts."""
    NO_MORE = "no_more"
    """Elements that are under way go on, and no other one starts."""


class ParameterTable(BaseModel):
    """A table of parameters: one row for each index, from 0 on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_PARAMETER_NAMES, examples=[["lr", "seed"]])]
    rows: Annotated[
        tuple[Annotated[tuple[str, ...], FailFast()], ...],
        FailFast(),
        Field(max_length=MAX_ELEMENTS, examples=[[["0.1", "1"]]]),
    ]

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        if not self.rows:
            raise ValueError("the table has no rows, so there are no elements")
        if len(self.rows) * len(self.names) > MAX_PARAMETERS:
            raise ValueError(
                f"the table has {len(self.rows)} rows of {len(self.names)} values; at most {MAX_PARAMETERS} values are "
                "allowed: put them into a file that each element reads by its index"
            )
        for number, row in enumerate(self.rows):
            if len(row) != len(self.names):
                raise ValueError(f"row {number} has {len(row)} values, but there are {len(self.names)} names")
        return self


class ArraySpec(BaseModel):
    """Which elements an array has, and how they run. Everything else is in the :class:`JobSpec` that they share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    indices: Annotated[
        str, Field(max_length=1024 * 1024, description="0-1999, 1,3,5-9 or 0-100:10", examples=["0-1999"])
    ]
    at_once: Annotated[
        int | None, Field(ge=1, le=MAX_ELEMENTS, description="How many elements may run at once; None: no bound")
    ] = None
    on_failure: OnFailure = OnFailure.CONTINUE
    parameters: Annotated[
        ParameterTable | None, Field(description="The parameters of each index: index 0 has the first row")
    ] = None
    matrix: Annotated[
        dict[str, Annotated[tuple[str, ...], FailFast()]],
        Field(
            max_length=64,
            description="Every combination of these values: the last name changes fastest from index to index",
            examples=[{"lr": ["1e-3", "1e-4"], "seed": ["1", "2", "3"]}],
        ),
    ] = {}
    count: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_INDEX + 1,
            description="What elements see as the number of elements; None: how many the array has. An array that "
            "repeats some elements of another one says the number of that one, so that {index} of {count} still fits",
        ),
    ] = None

    @field_validator("indices")
    @classmethod
    def _are_indices(cls, value: str) -> str:
        found = IndexSet.parse(value)
        if len(found) > MAX_ELEMENTS:
            raise ValueError(
                f"the array has {len(found)} elements; at most {MAX_ELEMENTS} are allowed: submit several arrays"
            )
        return str(found)

    @field_validator("matrix")
    @classmethod
    def _has_values(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if empty := [name for name, values in value.items() if not values]:
            raise ValueError(
                f"{empty[0][:80]!r} has no values, so there are no combinations: give it one, or leave it out"
            )
        return value

    @model_validator(mode="after")
    def _parameters_fit(self) -> Self:
        if self.parameters is not None and self.matrix:
            raise ValueError("an array has a table of parameters or a matrix, not both")
        for name in self.names:
            if not _PARAMETER_NAME.fullmatch(name):
                raise ValueError(f"{name[:80]!r} is not the name of a parameter: use letters, digits and '_'")
            if name in RESERVED_NAMES:
                raise ValueError(f"no parameter can be called {name!r}: every element has a placeholder of that name")
        if len({name.upper() for name in self.names}) < len(self.names):
            raise ValueError("two parameters have one name (upper and lower case count as the same)")
        size = 0
        for text in self._texts():
            check_text(text, "a parameter")
            size += len(text.encode()) + 1
        if size > MAX_PARAMETER_BYTES:
            raise ValueError(f"the parameters have {size} bytes; at most {MAX_PARAMETER_BYTES} are allowed")
        rows = self.parameter_rows
        if rows is not None and self.index_set.largest >= rows:
            raise ValueError(
                f"index {self.index_set.largest} is out of range: there are parameters for {rows} elements "
                f"(0-{rows - 1})"
            )
        return self

    def _texts(self) -> list[str]:
        table = [] if self.parameters is None else [text for row in self.parameters.rows for text in row]
        return table + [text for values in self.matrix.values() for text in values]

    @cached_property
    def index_set(self) -> IndexSet:
        """The indices of the elements."""
        return IndexSet.parse(self.indices)

    @property
    def size(self) -> int:
        """How many elements the array has."""
        return len(self.index_set)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(self.matrix) if self.parameters is None else self.parameters.names

    @property
    def parameter_rows(self) -> int | None:
        """For how many indices there are parameters. None: the elements have none."""
        if self.parameters is not None:
            return len(self.parameters.rows)
        return math.prod(len(values) for values in self.matrix.values()) if self.matrix else None

    @property
    def told_count(self) -> int:
        """What elements see as the number of elements."""
        return self.size if self.count is None else self.count

    def only(self, indices: IndexSet) -> ArraySpec:
        """The same with just these indices. The elements keep their parameters, and what they see as their number."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return ArraySpec(**{**fields, "indices": str(indices), "count": self.told_count})

    def parameters_of(self, index: int) -> dict[str, str]:
        """The parameters of the element with this index."""
        if self.parameters is not None:
            return dict(zip(self.parameters.names, self.parameters.rows[index], strict=True))
        found: dict[str, str] = {}
        for name in reversed(self.matrix):
            index, place = divmod(index, len(self.matrix[name]))
            found[name] = self.matrix[name][place]
        return dict(reversed(found.items()))


class ArrayShape(BaseModel):
    """What answers show of an :class:`ArraySpec`: parameters and indices may be large."""

    indices: str
    """A long list is cut, and ends with "…"."""
    at_once: int | None = None
    on_failure: OnFailure = OnFailure.CONTINUE
    parameters: tuple[str, ...] = ()
    """The names of the parameters."""
    repeats: str | None = None
    """The array of which this one runs some elements again."""

    @classmethod
    def of(cls, array: ArraySpec, repeats: str | None = None) -> ArrayShape:
        """The shape of the array."""
        indices = array.indices
        if len(indices) > SHOWN_INDICES:
            indices = indices[:SHOWN_INDICES].rpartition(",")[0] + ",…"
        return cls(
            indices=indices,
            at_once=array.at_once,
            on_failure=array.on_failure,
            parameters=array.names,
            repeats=repeats,
        )


class Array(ShownInNotebooks, BaseModel):
    """An array as the API shows it. Times are UTC."""

    id: str
    spec: JobSpec
    """What the elements share. ``{index}`` and names of parameters in it stand for those of each element."""
    array: ArrayShape
    state: ArrayState
    size: int
    counts: dict[JobState, int] = {}
    """How many elements are in each state. Elements that have not entered the queue yet are PENDING."""
    stopped_by: StoppedBy | None = None
    created_at: datetime
    finished_at: datetime | None = None
    reason: Reason | None = None
    """For which jobs and arrays it waits. None: for none."""
    workflow_url: str | None = None

    @property
    def ended(self) -> int:
        """How many elements have ended, however."""
        return self.count(*TERMINAL_JOB_STATES)

    def count(self, *states: JobState) -> int:
        """How many elements are in one of these states."""
        return sum(self.counts.get(state, 0) for state in states)


def element_spec(spec: JobSpec, array: ArraySpec, array_id: str, index: int) -> JobSpec:
    """What one element runs: the array's specification with the placeholders and variables of its index.

    ``spec`` and ``array`` passed :func:`check_elements`: the result is not validated again.
    """
    return spec.model_copy(update=_filled_fields(spec, array, array_id, index, array.parameters_of(index)))


def check_elements(spec: JobSpec, array: ArraySpec) -> None:
    """Raise ``ValueError`` unless every element can run: with the longest parameters, and a program that has a name.

    The longest values of all parameters are tried together, although no element may have all of them.
    """
    longest = {name: max(values, key=lambda text: len(text.encode())) for name, values in _columns(array)}
    largest = {name: getattr(spec, name) for name in type(spec).model_fields}
    largest |= _filled_fields(spec, array, "a-" + "0" * 15, array.index_set.largest, longest)
    try:
        JobSpec.model_validate(largest)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"with the longest value of each parameter, {message}") from None
    shortest = {name: min(values, key=lambda text: len(text.strip())) for name, values in _columns(array)}
    for program in [spec.command, *(group.command for group in spec.groups if group.command is not None)]:
        if not _filled(program[0], {"index": "0", "count": "0", "array": "a", **shortest}).strip():
            raise ValueError(f"the program to run is {program[0]!r}, and a value of that parameter is empty")


def _columns(array: ArraySpec) -> list[tuple[str, Sequence[str]]]:
    """Each parameter with all of its values."""
    if array.parameters is None:
        return list(array.matrix.items())
    return list(zip(array.parameters.names, zip(*array.parameters.rows, strict=True), strict=True))


def _filled_fields(
    spec: JobSpec, array: ArraySpec, array_id: str, index: int, parameters: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of ``spec`` that differ from element to element."""
    texts = {"index": str(index), "count": str(array.told_count), "array": array_id, **parameters}
    own = {
        "GPU_PLATFORM_ARRAY_ID": array_id,
        "GPU_PLATFORM_ARRAY_INDEX": str(index),
        "GPU_PLATFORM_ARRAY_COUNT": str(array.told_count),
        **{PARAMETER_PREFIX + name.upper(): value for name, value in parameters.items()},
    }
    groups = tuple(
        group.model_copy(update={"command": _filled_all(group.command, texts), "env": _filled_env(group.env, texts)})
        for group in spec.groups
    )
    return {
        "command": _filled_all(spec.command, texts),
        "env": _filled_env(spec.env, texts) | own,
        "workdir": None if spec.workdir is None else _filled(spec.workdir, texts),
        "groups": groups,
        "artifacts": None if spec.artifacts is None else spec.artifacts.of_element(index),
        # The array waits for other jobs, not each element once more.
        "after": (),
        "if_unmet": None,
    }


def _filled_all(command: list[str] | None, texts: Mapping[str, str]) -> list[str] | None:
    return None if command is None else [_filled(text, texts) for text in command]


def _filled_env(env: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, str]:
    return {name: _filled(text, texts) for name, text in env.items()}


def _filled(text: str, texts: Mapping[str, str]) -> str:
    """``text`` with each ``{name}`` that is known replaced. Other braces stay as they are."""
    if "{" not in text:
        return text
    return re.sub(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", lambda found: texts.get(found[1], found[0]), text)
