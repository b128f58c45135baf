"""One SQL database with jobs, queue, hosts, GPUs, allocations and the event log. What it says is true.

Zero oversubscription is promised here: by CHECK constraints, by one partial unique index, and by conditional updates
that take a whole gang or nothing. Functions are synchronous, take the store first and the time as ``now``, and may be
repeated; call them from threads.
"""

from gpu_platform.store.database import Store

__all__ = ["Store"]
