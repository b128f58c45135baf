"""The Python client: ``Client`` for ordinary code, ``AsyncClient`` for asyncio. ::

from gpu_platform.client import Client
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec

with Client() as client:
    job = client.submit(JobSpec(command=["python", "train.py"], gpus=ResourceRequest(gpus_per_host=2)))
    print(client.wait(job.id).state)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_platform.client.aio import AsyncClient
    from gpu_platform.client.sync import Client
    from gpu_platform.client.wire import LogChunk, Page, Problem

__all__ = ["AsyncClient", "Client", "LogChunk", "Page", "Problem"]

_HOMES = {"AsyncClient": "aio", "Client": "sync", "LogChunk": "wire", "Page": "wire", "Problem": "wire"}


def __getattr__(name: str) -> Any:
    """Called for a name that the package does not have yet: who needs one client does not import the other."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
