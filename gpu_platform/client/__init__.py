"""The Python client: ``Client`` for ordinary code, ``AsyncClient`` for asyncio. ::

from gpu_platform.client import Client
from gpu_platform.domain.job import GpuRequest, JobSpec

with Client() as client:
    job = client.submit(JobSpec(command=["python", "train.py"], gpus=GpuRequest(gpus_per_host=2)))
    print(client.wait(job.id).state)
"""

from gpu_platform.client.aio import AsyncClient
from gpu_platform.client.sync import Client
from gpu_platform.client.wire import LogChunk, Page, Problem

__all__ = ["AsyncClient", "Client", "LogChunk", "Page", "Problem"]
