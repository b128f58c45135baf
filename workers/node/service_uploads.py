"""Asks the service for the uploaded code of an attempt that starts here, a part at a time."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import IO
from urllib.parse import quote

import httpx

from gpu_platform import disk_room
from gpu_platform.client.calls import UPLOAD_SIZE_HEADER
from gpu_platform.client.wire import problem_of_response
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.upload_limits import CHUNK_BYTES, MAX_UPLOAD_MIB
from gpu_platform.node.environments.uploaded_code import cannot_keep
from gpu_platform.node.processes.step_process import StepGivenUp
from gpu_platform.node.processes.stopping import is_closed
from gpu_platform.node.system.paths import node_dir
from gpu_platform.observability import get_logger
from gpu_platform.settings import Settings
from workers.node.identity import NodeIdentity

TIMEOUT_S = 15.0
PATIENCE_S = 60.0
"""How long services that do not answer are asked. Shorter than the ``start_to_close_timeout`` of the steps."""
_PAUSE_S = 1.0

log = get_logger(__name__)


class ServiceUploads:
    """Asks the services in turn, as this host. After a failure it goes on with the part that it lacks. Thread-safe."""

    def __init__(self, settings: Settings, identity: NodeIdentity) -> None:
        self._urls = [url.rstrip("/") for url in (settings.api_url, *settings.api_urls)]
        self._identity = identity
        self._home = node_dir(settings.state_dir.resolve(), settings.node.name)
        self._state_dir, self._kept = settings.state_dir, disk_room.kept_by_starts(settings.node.disk_reserve_mib)

    def __call__(self, plan: HostPlan, file: IO[bytes]) -> None:
        """Write the archive into ``file``. Raises :class:`HostUnavailable` if no service gives it, and
        :class:`PreflightFailed` if it is not there any more."""
        deadline = time.monotonic() + PATIENCE_S
        why = ""
        while True:
            for url in self._urls:
                try:
                    with self._identity.blocking_client(TIMEOUT_S) as http:
                        self._fetch(http, url, plan, file)
                    return
                except (httpx.HTTPError, OSError) as error:
                    why = f"{url}: {type(error).__name__}"
                except _Later as error:
                    why = f"{url}: {error}"
            if time.monotonic() > deadline or is_closed(self._home, plan.key):
                break
            time.sleep(_PAUSE_S)
        log.warning("upload.not_given", job=plan.key.job_id, attempt=plan.key.attempt, why=why)
        raise HostUnavailable(f"{plan.host} did not get the job's code: no service gives it now ({why})")

    def _fetch(self, http: httpx.Client, url: str, plan: HostPlan, file: IO[bytes]) -> None:
        path = f"/v1/hosts/{quote(plan.host)}/attempts/{quote(plan.key.job_id)}/{plan.key.attempt}/upload"
        while True:
            if is_closed(self._home, plan.key):
                raise StepGivenUp
            offset = file.tell()
            response = http.get(f"{url}{path}", params={"offset": offset}, headers=self._identity.headers())
            if response.status_code != HTTPStatus.OK:
                self._refused(plan, response)
            size = int(response.headers.get(UPLOAD_SIZE_HEADER, "0"))
            part = response.content
            if not part or len(part) > CHUNK_BYTES or offset + len(part) > size or size > MAX_UPLOAD_MIB << 20:
                raise _Later(f"it answered {len(part)} bytes at {offset} of {size}")
            try:
                if offset == 0:
                    self._check_room(plan, file, size)
                file.write(part)
                file.flush()
            except OSError as error:  # it may have a half of the part now: this step begins again
                raise cannot_keep(plan, self._state_dir, error) from error
            if offset + len(part) == size:
                return

    def _check_room(self, plan: HostPlan, file: IO[bytes], size: int) -> None:
        """Raise :class:`HostUnavailable` if the code would take room that is kept for records of what runs: it is on
        the disk twice while it is unpacked."""
        room = disk_room.DiskRoom.of(file.fileno(), self._kept)
        if room.is_full(2 * size):
            why = disk_room.told(f"its records ({self._state_dir})", room.why(2 * size))
            raise HostUnavailable(f"{plan.host} cannot keep the job's code: {why}")

    @staticmethod
    def _refused(plan: HostPlan, response: httpx.Response) -> None:
        problem = problem_of_response(response.status_code, response.headers, response.content)
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or problem.retryable:
            raise _Later(problem.detail)
        log.warning("upload.refused", job=plan.key.job_id, attempt=plan.key.attempt, why=problem.detail)
        if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY):
            raise PreflightFailed(
                f"{plan.host} did not get the job's code: {problem.detail}", kind=blame(FailureCause.REQUEST)
            )
        raise HostUnavailable(f"{plan.host} did not get the job's code: {problem.detail}")


class _Later(Exception):
    """The service may answer later."""
