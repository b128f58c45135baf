"""What the jobs of a pipeline's step run: commands and environments, with their expressions filled in.

They are measured first, without building them, and refused if they would be too large: an output of 64 KiB that a step
names a thousand times, for a thousand items, would be 64 GB. What is allowed is built for one job at a time, or as one
column of an array's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from gpu_platform.domain.jobs.array import MAX_PARAMETER_BYTES, MAX_PARAMETER_NAMES
from gpu_platform.domain.pipelines import expressions
from gpu_platform.domain.pipelines.expressions import ExpressionError, Template, Work
from gpu_platform.domain.pipelines.pipeline import Step
from gpu_platform.domain.texts import MAX_COMMAND_BYTES, MAX_ENV_BYTES

_OF_ITEMS = frozenset({"item", "index"})


class Predicted(NamedTuple):
    """The most bytes that the texts of a step will have, once they are built."""

    command_bytes: int
    """Of one job."""
    env_bytes: int
    parameter_bytes: int = 0
    """Of the parameters of the array that all jobs are."""


@dataclass(frozen=True)
class StepTexts:
    """The texts of all jobs of one step."""

    items: list[Any]
    """What the jobs differ in."""
    scope: Mapping[str, Any]
    is_array: bool
    command_parts: tuple[Template, ...] = field(compare=False)
    env_parts: Mapping[str, Template] = field(compare=False)

    @classmethod
    def of(cls, step: Step, items: list[Any], scope: Mapping[str, Any]) -> StepTexts:
        """Those of ``step`` with these items. Raises :class:`ExpressionError`."""
        return cls(
            items,
            scope,
            step.for_each is not None,
            tuple(expressions.template(text) for text in step.job.command),
            {name: expressions.template(text) for name, text in step.job.env.items()},
        )

    def check(self, indices: Sequence[int], work: Work) -> Predicted:
        """Measure the jobs with these indices, and build nothing. Raises :class:`ExpressionError` if a job, or all of
        them together, would be too large."""
        command, env = list(self.command_parts), list(self.env_parts.values())
        same_command, own_command = self._measured(command, work)
        same_env, own_env = self._measured(env, work)
        same_env += sum(len(name) for name in self.env_parts) + 2 * len(env)
        same_command += len(command)
        if same_command > MAX_COMMAND_BYTES or same_env > MAX_ENV_BYTES:
            raise _too_large(same_command, same_env)
        if not self.is_array:
            return Predicted(same_command, same_env)
        # Each element of an array gets a copy of a text with braces, as of one that differs.
        copied = [one for one in (*command, *env) if not one.roots & _OF_ITEMS and one.has("{", self.scope, work)]
        own_texts = [*own_command, *own_env]
        columns = len(copied) + len(own_texts)
        if columns > MAX_PARAMETER_NAMES:
            raise ExpressionError(
                f"{columns} texts of its command and environment differ from job to job, or have braces; at most "
                f"{MAX_PARAMETER_NAMES} are allowed: put values into one object, and give the jobs that"
            )
        of_each = sum(one.size(self.scope, work) for one in copied) + columns
        rows, together, largest = max(indices) + 1, 0, 0
        most_command = most_env = 0
        for index in indices:
            own = self._own(index)
            of_command = sum(one.size(own, work) for one in own_command)
            of_env = sum(one.size(own, work) for one in own_env)
            if same_command + of_command > MAX_COMMAND_BYTES or same_env + of_env > MAX_ENV_BYTES:
                raise _too_large(same_command + of_command, same_env + of_env, index)
            most_command, most_env = max(most_command, of_command), max(most_env, of_env)
            largest = max(largest, of_command + of_env)
            together += of_command + of_env + of_each
            if together > MAX_PARAMETER_BYTES:
                break
        # Indices that are not among these get a row, too.
        together += (rows - len(indices)) * (largest + of_each)
        if together > MAX_PARAMETER_BYTES:
            raise ExpressionError(
                f"the commands and environments of its {len(self.items)} jobs have more than {MAX_PARAMETER_BYTES} "
                "bytes together, which is the most; put large values into files that the jobs read"
            )
        return Predicted(same_command + most_command, same_env + most_env, together)

    def command(self, index: int) -> list[str]:
        """The command of one job."""
        return [self._text(one, index) for one in self.command_parts]

    def env(self, index: int) -> dict[str, str]:
        """The environment of one job."""
        return {name: self._text(one, index) for name, one in self.env_parts.items()}

    def column(self, part: Template, indices: Sequence[int]) -> list[str] | str:
        """What one text is for these jobs. One text: it is the same for all, and has no braces."""
        if not part.roots & _OF_ITEMS:
            same = self._same(part)
            return [same] * len(indices) if "{" in same else same
        found = [self._text(part, index) for index in indices]
        return found[0] if "{" not in found[0] and all(one == found[0] for one in found) else found

    def _measured(self, parts: Sequence[Template], work: Work) -> tuple[int, list[Template]]:
        """The bytes of the texts that are the same for all jobs, and the other texts."""
        own = [one for one in parts if one.roots & _OF_ITEMS]
        same = sum(one.size(self.scope, work) for one in parts if not one.roots & _OF_ITEMS)
        return same, own

    def _text(self, part: Template, index: int) -> str:
        return self._built(part, index) if part.roots & _OF_ITEMS else self._same(part)

    def _same(self, part: Template) -> str:
        found = self._kept.get(id(part))
        if found is None:
            found = self._kept[id(part)] = expressions.as_text(part.value(self.scope, Work()))
        return found

    def _built(self, part: Template, index: int) -> str:
        return expressions.as_text(part.value(self._own(index), Work()))

    def _own(self, index: int) -> Mapping[str, Any]:
        return {**self.scope, "item": self.items[index], "index": index} if self.is_array else self.scope

    @cached_property
    def _kept(self) -> dict[int, str]:
        return {}


def _too_large(command: int, env: int, index: int | None = None) -> ExpressionError:
    what, size, most = (
        ("command", command, MAX_COMMAND_BYTES) if command > MAX_COMMAND_BYTES else ("environment", env, MAX_ENV_BYTES)
    )
    whose = "" if index is None else f" of its job {index}"
    return ExpressionError(
        f"with its expressions filled in, the {what}{whose} has {size} bytes; at most {most} are allowed: put large "
        "values into files that the job reads"
    )
