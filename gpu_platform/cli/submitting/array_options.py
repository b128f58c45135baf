"""The options of ``gpu-platform submit`` that make an array of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gpu_platform.cli.option_groups import given
from gpu_platform.cli.submitting import parameters

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.array import ArraySpec


@dataclass(frozen=True)
class ArrayOptions:
    """Many elements of one job, each with an index and parameters of its own."""

    HEADINGS: ClassVar = {"array": "Array"}

    array: Annotated[
        str | None,
        typer.Option(
            metavar="INDICES|FILE",
            help="An array: 0-1999, 1,3,5-9, 0-100:10, or a .csv or .jsonl file with a row of parameters for each "
            "element; at most 64 at once: 0-1999%64. {index} and {NAME} in the command stand for each element's own.",
        ),
    ] = None
    matrix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES…",
            help="An array of all combinations: lr=1e-3,1e-4 seed=1..5; may be repeated.",
        ),
    ] = None
    at_once: Annotated[int | None, typer.Option(metavar="N", help="How many elements may run at once.")] = None
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="When an element has failed for good, stop the others.")
    ] = False

    @property
    def given(self) -> bool:
        """True if an array is wanted. Raises :class:`typer.BadParameter` for options that need one."""
        wanted = self.array is not None or bool(self.matrix)
        for option, used in (("--at-once", self.at_once is not None), ("--fail-fast", self.fail_fast)):
            if used and not wanted:
                raise typer.BadParameter(f"{option} is about elements of an array: say which, with --array or --matrix")
        return wanted

    def spec(self, words: Sequence[str]) -> ArraySpec:
        """The array. ``words``: more of ``--matrix``. Raises :class:`typer.BadParameter` and
        :class:`InvalidRequest`."""
        from gpu_platform.cli import session
        from gpu_platform.domain.jobs.array import MAX_ELEMENTS, ArraySpec, OnFailure

        text = None if self.array is None else parameters.written(self.array)
        matrix = parameters.read_matrix([*(self.matrix or []), *words])
        fields: dict[str, Any] = {"indices": None if text is None else text.text}
        if text is not None and text.is_file:
            if matrix:
                raise typer.BadParameter(f"--array {text.text} and --matrix both give parameters: leave one out")
            names, rows = parameters.read_table(Path(text.text))
            if len(rows) > MAX_ELEMENTS:
                raise typer.BadParameter(
                    f"{text.text} has {len(rows):,} rows; an array has at most {MAX_ELEMENTS:,} elements: split it"
                )
            fields |= {"indices": f"0-{len(rows) - 1}", "parameters": {"names": names, "rows": rows}}
        elif text is None:
            fields["indices"] = f"0-{_combinations(matrix) - 1}"
        fields |= given(
            matrix=matrix or None,
            at_once=self._at_once(None if text is None else text.at_once),
            on_failure=OnFailure.STOP if self.fail_fast else None,
        )
        return session.validated(ArraySpec, fields)

    def _at_once(self, bound: int | None) -> int | None:
        if bound is not None and self.at_once is not None and bound != self.at_once:
            raise typer.BadParameter(f"--at-once {self.at_once} contradicts %{bound}: leave one of them out")
        return self.at_once if bound is None else bound

    def split(self, command: Sequence[str]) -> tuple[list[str], list[str]]:
        """More words of ``--matrix``, and the program: ``--matrix lr=1,2 seed=1..5 -- python train.py``.

        Raises :class:`typer.BadParameter` if options follow such words: they would end up in the program.
        """
        if not self.matrix or "--" not in command:
            return [], list(command)
        place = list(command).index("--")
        words = list(command[:place])
        if not words or not parameters.is_matrix_word(words[0]):
            return [], list(command)
        if stray := [word for word in words if not parameters.is_matrix_word(word)]:
            raise typer.BadParameter(
                f"{stray[0]!r} comes after words of --matrix: make --matrix the last option, or write it once for each "
                "parameter"
            )
        return words, list(command[place + 1 :])


def _combinations(matrix: dict[str, list[str]]) -> int:
    count = 1
    for values in matrix.values():
        count *= len(values)
    return count
