"""Functions as jobs: ``Executor`` runs Python functions on GPUs of the platform, and gives futures. ::

import gpu_platform

with gpu_platform.Executor(gpus=1, time_limit_s=3600) as executor:
    futures = executor.map(train, [1e-3, 1e-4])      # one array, an element for each call
    print([future.result() for future in futures])

Needs ``pip install gpu-platform[executor]`` here and in the Python that the jobs run.
"""

from __future__ import annotations

from gpu_platform.executor.executor import Executor
from gpu_platform.executor.futures import Future

__all__ = ["Executor", "Future"]
