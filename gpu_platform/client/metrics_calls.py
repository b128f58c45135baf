"""The requests of the REST API about metrics, as data."""

from __future__ import annotations

from gpu_platform.client.calls import Call, quoted

_PATIENCE_S = 60.0
"""A job may have many hosts, and some of them may not answer."""


def of_gpu(gpu_id: str, window_s: int) -> Call:
    """Get the figures of a GPU: ``GET /v1/gpus/{gpu_id}/metrics``."""
    return Call("GET", f"/v1/gpus/{quoted(gpu_id)}/metrics", {"window_s": window_s}, patience_s=_PATIENCE_S)


def of_host(name: str, window_s: int) -> Call:
    """Get the figures of a host's GPUs: ``GET /v1/hosts/{name}/metrics``."""
    return Call("GET", f"/v1/hosts/{quoted(name)}/metrics", {"window_s": window_s}, patience_s=_PATIENCE_S)


def of_job(job_id: str, window_s: int) -> Call:
    """Get the figures of a job's GPUs: ``GET /v1/jobs/{job_id}/metrics``."""
    return Call("GET", f"/v1/jobs/{quoted(job_id)}/metrics", {"window_s": window_s}, patience_s=_PATIENCE_S)
