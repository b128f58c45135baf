"""Finds pipelines that no workflow drives: a service died while it submitted one, or Temporal lost it. And those that
the database lost, which are restored from their workflows."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import structlog
from temporalio.client import Client

from activities.pipelines import start_pipeline
from gpu_platform.clock import utc_now
from gpu_platform.domain.packing import unpack
from gpu_platform.domain.pipelines.pipeline import PipelineSpec, SubmittedPipeline
from gpu_platform.store import Store
from gpu_platform.store.jobs import pipelines
from gpu_platform.temporal.job_workflows import NotOurs, arguments_of

log = structlog.get_logger()

EVERY_S = 60.0
"""How often each open pipeline is looked at. A new one is looked at in the next sweep."""
ENDED_FOR = timedelta(hours=23)
"""Pipelines that ended earlier are not restored: retention may have removed their rows (each is kept for a day)."""
MOST = 1000
"""How many workflows one look compares with their rows, the newest first."""
_PIPELINES = "WorkflowType = 'PipelineWorkflow' AND (ExecutionStatus = 'Running' OR CloseTime > '{}')"
_WITHIN = timedelta(seconds=10)


class PipelineUpkeep:
    """Lets every open pipeline look at its jobs, and starts its workflow if there is none."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store, self._client = store, client
        self._looked_at: dict[str, float] = {}
        self._compare_at = 0.0

    async def sweep(self) -> None:
        """Start what is missing. Raises ``RPCError`` without Temporal, ``Unavailable`` without the database."""
        if time.monotonic() >= self._compare_at:
            await self._restore_unknown()
            self._compare_at = time.monotonic() + EVERY_S
        open_ones = await asyncio.to_thread(pipelines.open_ones, self._store)
        self._looked_at = {one: at for one, at in self._looked_at.items() if one in set(open_ones)}
        for one in open_ones:
            if time.monotonic() - self._looked_at.get(one, float("-inf")) >= EVERY_S:
                await start_pipeline(self._client, self._store, one)
                self._looked_at[one] = time.monotonic()

    async def _restore_unknown(self) -> None:
        query = _PIPELINES.format((utc_now() - ENDED_FOR).strftime("%Y-%m-%dT%H:%M:%SZ"))
        found = [one.id async for one in self._client.list_workflows(query, limit=MOST)]
        for pipeline_id in await asyncio.to_thread(pipelines.unknown, self._store, found):
            submitted = await self._submitted(pipeline_id)
            if submitted is None or submitted.packed is None:
                log.error("pipeline.not_restored", pipeline=pipeline_id)
                continue
            spec = PipelineSpec.model_validate_json(unpack(submitted.packed))
            if await asyncio.to_thread(pipelines.restore, self._store, pipeline_id, spec, submitted, utc_now()):
                log.warning("pipeline.restored", pipeline=pipeline_id)

    async def _submitted(self, pipeline_id: str) -> SubmittedPipeline | None:
        """The workflow's second argument. None: it has none, or was not written by this platform."""
        try:
            return (await arguments_of(self._client, pipeline_id, [str, SubmittedPipeline | None], _WITHIN))[1]
        except NotOurs:
            return None
