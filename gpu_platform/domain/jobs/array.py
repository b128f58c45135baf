"""Arrays: one specification for many elements, each of which is a job with an index and parameters of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.domain.texts import check_text

MAX_ELEMENTS = 100_000
"""The most elements of one array."""
MAX_PARAMETER_BYTES = 16 * 1024 * 1024
"""The most bytes of all parameters of an array together."""
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


class ParameterTable(BaseModel):
    """A table of parameters: one row for each index, from 0 on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: Annotated[tuple[str, ...], Field(min_length=1, max_length=256, examples=[["lr", "seed"]])]
    rows: Annotated[
        tuple[tuple[str, ...], ...], Field(min_length=1, max_length=MAX_ELEMENTS, examples=[[["0.1", "1"]]])
    ]

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
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
        dict[str, tuple[str, ...]],
        Field(
            max_length=64,
            description="Every combination of these values: the last name changes fastest from index to index",
            examples=[{"lr": ["1e-3", "1e-4"], "seed": ["1", "2", "3"]}],
        ),
    ] = {}

    @field_validator("indices")
    @classmethod
    def _are_indices(cls, value: str) -> str:
        found = IndexSet.parse(value)
        if len(found) > MAX_ELEMENTS:
            raise ValueError(
                f"the array has {len(found)} elements; at most {MAX_ELEMENTS} are allowed: submit several arrays"
            )
        return str(found)

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
                f"index {self.index_set.largest} is out of range: there are parameters for {rows} elements, "
                f"0-{rows - 1}"
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

    def parameters_of(self, index: int) -> dict[str, str]:
        """The parameters of the element with this index."""
        if self.parameters is not None:
            return dict(zip(self.parameters.names, self.parameters.rows[index], strict=True))
        found: dict[str, str] = {}
        for name in reversed(self.matrix):
            index, place = divmod(index, len(self.matrix[name]))
            found[name] = self.matrix[name][place]
        return dict(reversed(found.items()))


class Array(BaseModel):
    """An array as the API shows it. Times are UTC."""

    id: str
    spec: JobSpec
    """What the elements share. ``{index}`` and names of parameters in it stand for those of each element."""
    array: ArraySpec
    state: ArrayState
    size: int
    counts: dict[JobState, int] = {}
    """How many elements are in each state. Elements that have not entered the queue yet are PENDING."""
    stopped_by: StoppedBy | None = None
    created_at: datetime
    finished_at: datetime | None = None
    workflow_url: str | None = None


def element_spec(spec: JobSpec, array: ArraySpec, array_id: str, index: int) -> JobSpec:
    """What one element runs: the array's specification with the placeholders and variables of its index.

    ``spec`` was validated, and so was each parameter: the result is not validated again.
    """
    parameters = array.parameters_of(index)
    texts = {"index": str(index), "count": str(array.size), "array": array_id, **parameters}
    own = {
        "GPU_PLATFORM_ARRAY_ID": array_id,
        "GPU_PLATFORM_ARRAY_INDEX": str(index),
        "GPU_PLATFORM_ARRAY_COUNT": str(array.size),
        **{PARAMETER_PREFIX + name.upper(): value for name, value in parameters.items()},
    }
    filled = {
        "command": [_filled(text, texts) for text in spec.command],
        "env": {name: _filled(text, texts) for name, text in spec.env.items()} | own,
        "workdir": None if spec.workdir is None else _filled(spec.workdir, texts),
    }
    return spec.model_copy(update=filled)


def _filled(text: str, texts: Mapping[str, str]) -> str:
    """``text`` with each ``{name}`` that is known replaced. Other braces stay as they are."""
    if "{" not in text:
        return text
    return re.sub(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", lambda found: texts.get(found[1], found[0]), text)
