"""How large and how strange the values in a host's report may be. A host may be broken, or in wrong hands.

The limits are far above what any machine has. They keep numbers within the columns of the database, and texts free of
what a database, a terminal or a file name cannot hold: NUL, other control characters, halves of surrogate pairs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.texts import check_text

MAX_GPUS = 1024
MAX_ATTEMPTS = 10_000
MAX_ITEMS = 1024
"""Items of lists and mappings of which a machine has a handful."""

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""CPUs, MiB: what a column of 32 bits holds."""
BigCount = Annotated[int, Field(ge=0, le=2**63 - 1)]
SmallCount = Annotated[int, Field(ge=0, le=65_535)]
Place = Annotated[int, Field(ge=-1, le=65_535)]
"""Number of a NUMA node or socket. Linux writes -1 where it does not know."""
GpuIndex = Annotated[int, Field(ge=0, le=4095)]
FaultyIndex = Annotated[int, Field(ge=-1, le=4095)]
"""Index of a GPU with a fault. -1: the host did not see it when its node worker began."""

# pydantic refuses a text with half of a surrogate pair as soon as it has a pattern.
ShortText = Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""A name or a version: one line."""
LONGEST_TEXT = 8192
Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT, pattern=r"^[^\x00]*$")]
"""A reason or a path. It may have several lines; whoever shows it escapes it."""
Uuid = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
HostName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]


def _is_an_attempt(key: AttemptKey) -> AttemptKey:
    if not (0 <= key.attempt < 2**31 and len(key.job_id) <= 255):
        raise ValueError("no attempt of a job has this name")
    check_text(key.job_id, "the id of a job")
    return key


ReportedAttempt = Annotated[AttemptKey, AfterValidator(_is_an_attempt)]
