"""The Python client: ``Client`` for ordinary code, ``AsyncClient`` for asyncio. ::

from gpu_platform.client import Client
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec

with Client() as client:
    job = client.submit(JobSpec(command=["python", "train.py"], gpus=ResourceRequest(gpus_per_host=2)))
    print(client.wait(job.id).state)
"""

from gpu_platform.client.aio import AsyncClient
from gpu_platform.client.sync import Client
from gpu_platform.client.wire import LogChunk, Page, Problem

__all__ = ["AsyncClient", "Client", "LogChunk", "Page", "Problem"]
