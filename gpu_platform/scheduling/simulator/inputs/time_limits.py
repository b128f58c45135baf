"""Time limits for the jobs of a trace that has none.

Users do not know how long a job will run. The **f-model** (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) multiplies
the run time by a random factor. People also choose few different limits (Tsafrir, Etsion, Feitelson, JSSPP 2005), so
the product is rounded up to one of these.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.scheduling.simulator.inputs.trace import Trace

CHOSEN_LIMITS_S = (
    *(minutes * 60.0 for minutes in (5, 15, 30)),
    *(hours * 3600.0 for hours in (1, 2, 4, 8, 12, 24, 48, 72, 120, 168, 336, 720, 1440, 2880, 8760)),
)
"""Limits that people choose, in seconds."""
_FACTORS = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?", re.ASCII)


@dataclass(frozen=True)
class LimitFactors:
    """The limit of a job divided by its run time: between ``least`` and ``most``, at random."""

    least: float
    most: float
    random: bool

    @classmethod
    def read(cls, text: str) -> LimitFactors:
        """Read ``2`` (each limit is twice the run time) or ``1-5`` (at random, and rounded up). Raises
        InvalidRequest."""
        match = _FACTORS.fullmatch(text.strip())
        least = float(match.group(1)) if match else 0.0
        most = float(match.group(2) or least) if match else 0.0
        if match is None or least < 1 or most < least:
            raise InvalidRequest(
                f"{text!r} is no factor for time limits: write a number from 1 on, like 2, "
                "or a range like 1-5 for a random factor of each job"
            )
        return cls(least, most, random=match.group(2) is not None)


def with_limits(trace: Trace, factors: LimitFactors, seed: int = 0) -> Trace:
    """Give each job without a time limit one. No job is ended by it. ``seed`` chooses the random factors."""
    if not factors.random:
        return trace.limited(factors.least)
    drawn = np.random.default_rng(seed).uniform(factors.least, factors.most, len(trace.jobs)).tolist()
    jobs = [
        job if job.time_limit_s else job.model_copy(update={"time_limit_s": chosen_limit_s(job.duration_s * factor)})
        for job, factor in zip(trace.jobs, drawn, strict=True)
    ]
    note = (
        f"jobs without a time limit get {factors.least:g} to {factors.most:g} times their run time at random "
        f"(seed {seed}), rounded up to a limit that people choose"
    )
    return Trace(trace.name, jobs, [*trace.notes, note])


def chosen_limit_s(seconds: float) -> float:
    """Return the limit that a user would choose for a job of at most this many seconds. Above one year: itself."""
    place = bisect_left(CHOSEN_LIMITS_S, seconds)
    return CHOSEN_LIMITS_S[place] if place < len(CHOSEN_LIMITS_S) else seconds
