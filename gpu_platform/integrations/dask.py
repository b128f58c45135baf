"""``GpuPlatformCluster``: a Dask cluster whose workers are jobs of the platform. ::

from dask.distributed import Client
from gpu_platform.integrations.dask import GpuPlatformCluster

with GpuPlatformCluster(gpus=1, host="10.0.0.5") as cluster:
    cluster.adapt(minimum=0, maximum=8)      # or cluster.scale(8)
    with Client(cluster) as client:
        print(client.submit(sum, range(10)).result())

The scheduler runs here. It and the workers must reach each other, so the hosts give jobs their own network
(``node.network.mode: host``) or let them through. A Dask scheduler runs what anybody sends who reaches it, so all
connections use TLS with a key that only this account can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import socket
import sys
import uuid
from pathlib import Path
from typing import Any, ClassVar

from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.scheduler import Scheduler
from distributed.security import Security

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import IllegalTransition, NotFound, NotSignedIn, PlatformError
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.executor.folder import check_place
from gpu_platform.private_files import write_file

WATCH_EVERY_S = 2.0
"""How often a job of a worker is asked for its end."""


class WorkerJob(ProcessInterface):
    """One worker: a job from its submission to its end."""

    def __init__(
        self,
        scheduler: str,
        name: str | int,
        *,
        spec: dict[str, Any],
        python: str,
        threads: int,
        tls: dict[str, str],
        api_url: str | None,
        cluster: str,
        **_: Any,
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self.name = name
        self._fields, self._api_url, self._key = spec, api_url, f"{cluster}-{name}-{uuid.uuid4().hex[:8]}"
        options = [f"--tls-{option}={path}" for option, path in tls.items()]
        self._command = [
            *(python, "-m", "distributed.cli.dask_worker", scheduler, f"--name={name}", f"--nthreads={threads}"),
            *("--no-nanny", "--no-dashboard", "--death-timeout=120", *options),
        ]
        self.job_id: str | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Submit the job. The worker comes when the job has its GPUs."""
        spec = JobSpec.model_validate({**self._fields, "command": self._command})
        async with AsyncClient(self._api_url) as client:
            self.job_id = (await client.submit(spec, idempotency_key=self._key)).id
        self._watch = asyncio.create_task(self._until_it_ends(self.job_id))
        await super().start()

    async def close(self) -> None:
        """Cancel the job."""
        if self._watch is not None:
            self._watch.cancel()
        if self.job_id is not None:
            async with AsyncClient(self._api_url) as client:
                with contextlib.suppress(IllegalTransition, NotFound):
                    await client.cancel(self.job_id, reason="its Dask cluster does not need this worker")
        await super().close()

    async def _until_it_ends(self, job_id: str) -> None:
        """Tell the cluster when the job has ended by itself, so that ``adapt`` starts another one."""
        async with AsyncClient(self._api_url) as client:
            while True:
                try:
                    job = await client.get(job_id)
                except (NotFound, NotSignedIn):
                    return
                except PlatformError:
                    job = None  # the worker works on without the service
                if job is not None and job.state.is_terminal:
                    break
                await asyncio.sleep(WATCH_EVERY_S)
        await super().close()


class GpuPlatformCluster(SpecCluster):
    """A Dask cluster whose workers are jobs.

    ``gpus``: GPUs of each worker, a number or a :class:`ResourceRequest`. ``host``: the address at which the hosts
    reach this machine; default: that of its name. ``directory``: where the TLS key lies, on a file system that the
    hosts share; default: ``.gpu-platform`` in the current directory. ``python``: the interpreter of the workers,
    default: this one. ``threads``: of each worker. ``api_url``: the service. ``job``: further fields of each
    :class:`~gpu_platform.domain.jobs.spec.JobSpec`. ``n_workers``: how many to start at once.
    """

    worker_class: ClassVar[type[WorkerJob]] = WorkerJob

    def __init__(
        self,
        n_workers: int = 0,
        *,
        gpus: int | ResourceRequest = 0,
        host: str | None = None,
        directory: str | Path | None = None,
        python: str | None = None,
        threads: int = 1,
        api_url: str | None = None,
        job: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        name = options.pop("name", None) or f"dask-{getpass.getuser()}-{uuid.uuid4().hex[:8]}"
        self._files = Path(directory or Path.cwd() / ".gpu-platform").absolute() / name
        security = Security.temporary()
        tls = _write_keys(self._files, security)
        asked = ResourceRequest(gpus_per_host=gpus) if isinstance(gpus, int) else gpus
        fields = {"name": "dask-worker", "workdir": os.getcwd(), "gpus": asked, **(job or {})}
        worker = {
            "spec": fields,
            "python": python or sys.executable,
            "threads": threads,
            "tls": tls,
            "api_url": api_url,
            "cluster": name,
        }
        address = {"host": host or socket.gethostbyname(socket.gethostname()), "dashboard": False}
        super().__init__(
            scheduler={"cls": Scheduler, "options": {**address, "protocol": "tls://", "security": security}},
            worker={"cls": self.worker_class, "options": worker},
            security=security,
            name=name,
            **options,
        )
        if n_workers:
            self.scale(n_workers)

    async def _close(self) -> None:
        await super()._close()
        shutil.rmtree(self._files, ignore_errors=True)


def _write_keys(directory: Path, security: Security) -> dict[str, str]:
    """Write the key of the cluster for this account alone. Returns the option of a worker -> its file."""
    directory.parent.mkdir(0o700, parents=True, exist_ok=True)
    check_place(directory.parent)
    directory.mkdir(0o700)
    written: dict[str, str] = {}
    texts = (("ca-file", security.tls_ca_file), ("cert", security.tls_worker_cert), ("key", security.tls_worker_key))
    for name, text in texts:
        path = directory / name
        write_file(path, str(text).encode())
        written[name] = str(path)
    return written
