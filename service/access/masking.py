"""What is left out of answers: environments for everybody, and the jobs of namespaces that one may not see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel

from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.gpu import Gpu, Host
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.job import Job, QueueEntry
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store import Store
from gpu_platform.store.jobs import owners
from service.access.gate import Access

HIDDEN = "hidden"
"""In place of a job, a user or a namespace that one may not see."""
SECRET = "***"
"""In place of the value of an environment variable."""
_JOB_ID = re.compile(r"\b(?:j-[0-9a-z]{15}|a-[0-9a-z]{15}(?:\.[0-9]{1,7})?)\b")
"""Ids of jobs, arrays and their elements."""

M = TypeVar("M", bound=BaseModel)


def shown_spec(spec: JobSpec) -> JobSpec:
    """The job without the values of its environment: they often are secrets, and nobody needs them back."""
    groups = tuple(group.model_copy(update={"env": dict.fromkeys(group.env, SECRET)}) for group in spec.groups)
    return spec.model_copy(update={"env": dict.fromkeys(spec.env, SECRET), "groups": groups})


class Mask:
    """Hides from one principal what belongs to namespaces that it may not see."""

    def __init__(self, store: Store, access: Access) -> None:
        self._store = store
        self._access = access
        self._sees_all = access.namespaces is None
        self._seen: dict[str, bool] = {}

    def job(self, job: Job) -> Job:
        """A job as it may be shown."""
        return self._covered(job.model_copy(update={"spec": shown_spec(job.spec)}), {"spec", "placement"})

    def jobs(self, jobs: Iterable[Job]) -> list[Job]:
        """Several jobs."""
        return [self.job(job) for job in jobs]

    def array(self, array: Array) -> Array:
        """An array as it may be shown."""
        return self._covered(array.model_copy(update={"spec": shown_spec(array.spec)}), {"spec"})

    def entries(self, entries: Iterable[QueueEntry]) -> list[QueueEntry]:
        """Entries of the queue."""
        return [self._covered(entry.model_copy(update={"spec": shown_spec(entry.spec)}), {"spec"}) for entry in entries]

    def reason(self, reason: Reason) -> Reason:
        """Why a job waits."""
        return self._covered(reason, set())

    def model(self, model: M) -> M:
        """Any model of which nothing but job ids must be hidden."""
        return self._covered(model, set())

    def hosts(self, hosts: Iterable[Host]) -> list[Host]:
        """Hosts."""
        return [self._covered(host, {"nics", "nvlinks", "cuda_installations"}) for host in hosts]

    def gpus(self, gpus: Iterable[Gpu]) -> list[Gpu]:
        """GPUs, without those who hold them."""
        if self._sees_all:
            return [*gpus]
        found = [*gpus]
        self._learn(holder.job_id for gpu in found for holder in gpu.holders)
        return [self._gpu(gpu) for gpu in found]

    def events(self, events: Iterable[Event]) -> list[Event]:
        """Those events that may be shown: of jobs that one may see."""
        found = [*events]
        if self._sees_all:
            return found
        self._learn(event.job_id for event in found if event.job_id is not None)
        return [self._covered(event, set()) for event in found if event.job_id is not None and self._seen[event.job_id]]

    def _gpu(self, gpu: Gpu) -> Gpu:
        holders = [
            holder if self._seen[holder.job_id] else holder.model_copy(update={"job_id": HIDDEN})
            for holder in gpu.holders
        ]
        shared_by = gpu.shared_by if gpu.shared_by is None or self._access.sees(gpu.shared_by) else HIDDEN
        update: dict[str, Any] = {"holders": holders, "shared_by": shared_by}
        if gpu.job_id is not None and not self._seen.get(gpu.job_id, False):
            update["job_id"] = HIDDEN
        return self._covered(gpu.model_copy(update=update), {"info", "holders"})

    def _covered(self, model: M, as_it_is: set[str]) -> M:
        """The model with ids of hidden jobs replaced, except in the fields ``as_it_is``."""
        if self._sees_all:
            return model
        text = model.model_dump_json(exclude=as_it_is)
        mentioned = set(_JOB_ID.findall(text))
        self._learn(mentioned)
        if all(self._seen[job_id] for job_id in mentioned):
            return model
        covered = _JOB_ID.sub(lambda found: found[0] if self._seen[found[0]] else HIDDEN, text)
        kept = {name: getattr(model, name) for name in as_it_is}
        return type(model).model_validate({**json.loads(covered), **kept})

    def _learn(self, job_ids: Iterable[str]) -> None:
        new = {job_id for job_id in job_ids if job_id not in self._seen}
        found = owners.owners_of(self._store, new) if new else {}
        for job_id in new:
            owner = found.get(job_id)
            self._seen[job_id] = owner is not None and self._access.sees(owner.namespace)
