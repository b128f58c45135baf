"""How many of a GPU's SMs work, by NVML's GPM (GPU performance monitoring; Hopper and later, not with MIG).

NVML's utilisation says for how long *any* kernel ran: one that uses a single SM counts as 100 %. This is GPM's metric
``NVML_GPM_METRIC_SM_UTIL`` (nvml.h): "percentage of SMs that were busy", between two samples.
"""

from __future__ import annotations

import contextlib
from typing import Any

from gpu_platform.node.nvml.library import NvmlLibrary

PERIOD_S = 5.0
"""Seconds between two samples."""
_ASK_AGAIN_S = 60.0


class SmActivity:
    """Reads one GPU. ``handle``: NVML's for it."""

    def __init__(self, nvml: NvmlLibrary, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: tuple[Any, Any] | None = None
        """The older and the newer one."""
        self._request: Any = None
        self._percent: float | None = None
        self._next_s = 0.0

    def percent(self, now_s: float) -> float | None:
        """Percentage of SMs that were busy, the mean of the last :data:`PERIOD_S`. None: this GPU or driver does not
        tell, or there is only one sample yet.

        Raises ``NVMLError`` for a GPU that is lost or must be reset. Any other error only means that there is no value.
        """
        if now_s < self._next_s:
            return self._percent
        self._next_s = now_s + PERIOD_S
        try:
            self._percent = self._measure(now_s)
        except self._nvml.NVMLError as error:
            self._forget()
            if error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED):
                raise
            self._next_s = now_s + _ASK_AGAIN_S
        return self._percent

    def _measure(self, now_s: float) -> float | None:
        nvml = self._nvml
        if self._samples is None:
            if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self._next_s = now_s + _ASK_AGAIN_S
                return None
            self._samples = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
            return None
        newer, older = self._samples
        nvml.nvmlGpmSampleGet(self._handle, newer)
        self._samples = older, newer
        request = self._request_for(older, newer)
        nvml.nvmlGpmMetricsGet(request)
        metric = request.metrics[0]
        return metric.value if metric.nvmlReturn == nvml.NVML_SUCCESS else None

    def _request_for(self, older: Any, newer: Any) -> Any:
        nvml = self._nvml
        if self._request is None:
            self._request = nvml.c_nvmlGpmMetricsGet_t()
            self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            self._request.numMetrics = 1
            self._request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        self._request.sample1, self._request.sample2 = older, newer
        return self._request

    def _forget(self) -> None:
        samples, self._samples, self._percent = self._samples or (), None, None
        for sample in samples:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
