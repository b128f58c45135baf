"""Asks the service for the secrets of an attempt that starts here. They are kept nowhere."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from gpu_platform.client.wire import problem_of_response
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.secret_uses import LaunchSecrets
from gpu_platform.node.processes.secret_delivery import AWAY, MISSING, NO_SECRETS, REFUSED
from gpu_platform.observability import get_logger
from gpu_platform.settings import Settings
from workers.node.identity import NodeIdentity

TIMEOUT_S = 5.0

log = get_logger(__name__)


class ServiceSecrets:
    """Asks the services in turn, as this host. Thread-safe."""

    def __init__(self, settings: Settings, identity: NodeIdentity) -> None:
        self._urls = [url.rstrip("/") for url in (settings.api_url, *settings.api_urls)]
        self._identity = identity

    def __call__(self, plan: HostPlan) -> LaunchSecrets:
        """What the ranks of the plan get. Raises :class:`HostUnavailable`, with ``NO_SECRETS`` in its details."""
        path = f"/v1/hosts/{quote(plan.host)}/attempts/{quote(plan.key.job_id)}/{plan.key.attempt}/secrets"
        why = ""
        for url in self._urls:
            try:
                with self._identity.blocking_client(TIMEOUT_S) as http:
                    response = http.post(f"{url}{path}", json={}, headers=self._identity.headers())
                if response.status_code == HTTPStatus.OK:
                    return LaunchSecrets.model_validate_json(response.content)
            except (httpx.HTTPError, ValidationError, OSError) as error:
                why = f"{url}: {type(error).__name__}"
                continue
            problem = problem_of_response(response.status_code, response.headers, response.content)
            if response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and not problem.retryable:
                of_user = (HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)
                kind = MISSING if response.status_code in of_user else REFUSED
                raise self._not_given(plan, problem.detail, kind)
            why = f"{url}: {problem.detail}"
        raise self._not_given(plan, f"no service gives them now ({why})", AWAY)

    @staticmethod
    def _not_given(plan: HostPlan, why: str, kind: str) -> HostUnavailable:
        log.warning("secrets.not_given", job=plan.key.job_id, attempt=plan.key.attempt, kind=kind, why=why)
        return HostUnavailable(f"{plan.host} did not get the job's secrets: {why}", **{NO_SECRETS: kind})
