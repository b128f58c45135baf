"""How large messages of gRPC may be. It imports nothing of gRPC."""

from __future__ import annotations

from gpu_platform.domain.jobs.array import MAX_PARAMETER_BYTES

MAX_REQUEST_BYTES = MAX_PARAMETER_BYTES * 3 // 2
"""The largest body that REST takes, parameters of an array: each has two bytes around it here, and no quotes. Smaller
bounds of single requests are those of REST."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Answers of REST come in pieces and have no bound. A message is whole in the memory of both sides."""
