"""What-ifs: each runs in a process of its own, one at a time, and no longer than ``LONGEST_S``."""

from __future__ import annotations

import asyncio
import os
import sys

from gpu_platform.domain.errors import InvalidRequest, TooManyRequests, Unavailable
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.what_if import WhatIf, WhatIfRequest
from gpu_platform.observability import get_logger

LONGEST_S = 60.0
_PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TZ")
"""The process needs no address and no password, and gets none."""

log = get_logger(__name__)


class WhatIfs:
    """Runs what-ifs of this service."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._runs_for: str | None = None

    async def ask(self, caller: str, state: ClusterState, asked: WhatIfRequest) -> WhatIf:
        """The answer. Raises :class:`TooManyRequests` while another one runs, :class:`InvalidRequest` for a question
        that cannot be answered or takes too long, and :class:`Unavailable` if the process failed."""
        if self._runs_for is not None:
            raise TooManyRequests(
                "another what-if is being computed, and a service computes one at a time; try again in a moment",
                retry_after_s=5.0,
            )
        self._runs_for = caller
        try:
            return await self._computed(state, asked)
        finally:
            self._runs_for = None

    async def _computed(self, state: ClusterState, asked: WhatIfRequest) -> WhatIf:
        from service.operations.what_if_process import Question, WhatIfAnswer

        question = Question(state=state, asked=asked).model_dump_json().encode()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "service.operations.what_if_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
        try:
            async with asyncio.timeout(self._longest_s):
                written, said = await process.communicate(question)
        except TimeoutError:
            raise InvalidRequest(
                f"this what-if takes longer than {self._longest_s:g} s: look less far ahead (until_s), or take a "
                "snapshot and run `gpu-platform simulate --snapshot FILE` on your own machine"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            log.error("what_if.process_failed", code=process.returncode, said=said.decode(errors="replace")[-2000:])
            raise Unavailable("the what-if failed; the log of the service says why (what_if.process_failed)")
        answer = WhatIfAnswer.model_validate_json(written)
        if answer.found is None:
            raise InvalidRequest(answer.refused or "it has no answer")
        return answer.found
