"""Code cells of a notebook, as a person would write them. ``test_executor.py`` runs them in a real kernel."""

CELLS = [
    """
import asyncio
import gpu_platform
from gpu_platform.client import AsyncClient, Client
from gpu_platform.domain.jobs.spec import JobSpec

assert asyncio.get_event_loop().is_running()  # a kernel's cells run in a running event loop
client = Client()
FACTOR = 3


def triple(x):
    return FACTOR * x


job = client.submit(JobSpec(command=["sleep", "1.2"], name="from-a-notebook"))
job
""",
    "client.wait(job.id, progress=True).state",
    "client.list(name='from-a-notebook')",
    "client.hosts()",
    "client.gpus()",
    """
with gpu_platform.Executor(client=client) as executor:
    futures = executor.map(triple, [1, 2])
    print([future.result() for future in futures], await executor.submit(triple, 5))
""",
    """
async with AsyncClient() as aio:
    print((await aio.wait(job.id, progress=True)).state)
""",
]
