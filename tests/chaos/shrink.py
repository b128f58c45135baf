"""Delta debugging: the fewest disruptions of a failing plan that still make it fail.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002, with a bound on the
runs. What fails only sometimes shrinks less, but what is kept has failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence


async def shrink(numbers: Sequence[int], fails: Callable[[list[int]], Awaitable[bool]], *, max_runs: int) -> list[int]:
    """The smallest list found. ``fails`` runs the plan with those disruptions only."""
    kept, parts, runs = list(numbers), 2, 0
    while len(kept) > 1 and parts <= len(kept):
        chunks = _chunks(kept, parts)
        # Each part alone first, then all but one part.
        rests = [[number for number in kept if number not in chunk] for chunk in chunks] if parts > 2 else []
        for candidate in [*chunks, *rests]:
            if runs == max_runs:
                return kept
            runs += 1
            if await fails(candidate):
                kept, parts = candidate, max(2, parts - 1) if candidate in rests else 2
                break
        else:
            parts = min(len(kept), parts * 2) if parts < len(kept) else len(kept) + 1
    return kept


def _chunks(numbers: list[int], parts: int) -> list[list[int]]:
    size, more = divmod(len(numbers), parts)
    found: list[list[int]] = []
    begin = 0
    for part in range(parts):
        end = begin + size + (part < more)
        found.append(numbers[begin:end])
        begin = end
    return found
