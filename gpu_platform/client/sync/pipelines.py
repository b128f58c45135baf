# Generated from aio/pipelines.py (make client): do not edit, change that one.
"""Pipelines, as ``client.pipelines``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_platform.client import models
from gpu_platform.client import pipeline_calls as calls

if TYPE_CHECKING:
    from gpu_platform.client.sync import Client
    from gpu_platform.domain.pipelines.pipeline import Pipeline, PipelineRequest

LOOK_EVERY_S = 0.5


class Pipelines:
    """Submits, shows, cancels and retries pipelines. All but :meth:`submit` raise :class:`NotFound`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, request: PipelineRequest, *, idempotency_key: str | None = None) -> Pipeline:
        """Submit a pipeline, once, also if it is sent again after an error. Raises :class:`InvalidRequest`, which names
        the lines that are wrong, and :class:`IdempotencyConflict`. ``idempotency_key``: by default a new one."""
        return self._client.send(calls.submit(request, idempotency_key), models.Pipeline)

    def list(self, *, namespace: str | None = None) -> Iterator[Pipeline]:
        """All pipelines that one may see, newest first, without their steps."""
        return self._client.pages(models.Page[models.Pipeline], lambda cursor: calls.pipelines(namespace, cursor))

    def get(self, pipeline_id: str) -> Pipeline:
        """One pipeline, with its steps and their jobs."""
        return self._client.send(calls.pipeline(pipeline_id), models.Pipeline)

    def cancel(self, pipeline_id: str, reason: str = "") -> Pipeline:
        """Cancel its jobs. Returns at once."""
        return self._client.send(calls.cancel(pipeline_id, reason), models.Pipeline)

    def retry(self, pipeline_id: str, from_step: str | None = None) -> Pipeline:
        """Run again what was not COMPLETED, and ``from_step`` with all after it."""
        return self._client.send(calls.retry(pipeline_id, from_step), models.Pipeline)

    def wait(self, pipeline_id: str, timeout_s: float | None = None) -> Pipeline:
        """The pipeline once it has ended. Raises ``TimeoutError``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (found := self.get(pipeline_id)).state is models.PipelineState.RUNNING:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"pipeline {pipeline_id} has not ended within {timeout_s:g} s")
            time.sleep(LOOK_EVERY_S)
        return found
