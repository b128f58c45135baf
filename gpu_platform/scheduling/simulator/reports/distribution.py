"""Values of a report in a few figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict


class ReportData(BaseModel):
    """A part of a report. It does not change."""

    model_config = ConfigDict(frozen=True)


class Distribution(ReportData):
    """How values, in seconds or milliseconds, are distributed."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Return the distribution of ``values``; zeros if there are none."""
        if not values:
            return cls(count=0, mean=0, p50=0, p90=0, p99=0, max=0)
        p50, p90, p99 = np.percentile(values, (50, 90, 99), method="higher").tolist()
        return cls(count=len(values), mean=sum(values) / len(values), p50=p50, p90=p90, p99=p99, max=max(values))
