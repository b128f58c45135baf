"""What a job asks for when a host of it is cut off: :class:`Fencing`."""

from __future__ import annotations

from enum import StrEnum


class Fencing(StrEnum):
    """What happens to ranks on a host that is cut off from the control plane."""

    LEASE = "lease"
    """The host ends them when its lease has ended; the job goes on elsewhere once they must be dead."""
    STRICT = "strict"
    """The host ends them, too. The job waits until the host reports that they are gone, until the host was booted
    again, or until an operator declares it LOST."""
    RELAXED = "relaxed"
    """They go on. The job starts elsewhere as well: for a while, two attempts of it may run at once."""
