"""Secrets: kept sealed, checked when a job is submitted, opened for the host that starts its ranks."""

from __future__ import annotations

import asyncio
import base64
from functools import partial

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.access.secrets import SecretInfo, SecretValue
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import Forbidden, InvalidRequest, PlatformError
from gpu_platform.domain.jobs.secret_uses import LaunchSecrets
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.observability import get_logger
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.store.access import job_tokens, secrets
from service.context import ServiceContext, now

RESEAL_EVERY_S = 60.0

log = get_logger(__name__)


def set_secret(
    context: ServiceContext, namespace: str, name: str, value: SecretValue, actor: str, may_replace: secrets.MayReplace
) -> SecretInfo:
    """Keep a value. Raises :class:`InvalidRequest` and :class:`Forbidden`."""
    ring = _ring(context.settings)
    content = value.content()
    return secrets.set_secret(
        context.store, ring, namespace, name, content, actor=actor, may_replace=may_replace, now=now()
    )


def check_secrets(store: Store, spec: JobSpec) -> None:
    """Raise :class:`InvalidRequest` if the namespace does not have the secrets of the job, or not as variables."""
    if not spec.secrets:
        return
    known = {info.name: info for info in secrets.list_secrets(store, [spec.namespace])}
    for use in spec.secrets:
        info = known.get(use.name)
        if info is None:
            there = f"there are {', '.join(sorted(known)[:20])}" if known else "it has none"
            raise InvalidRequest(
                f"the job uses the secret {use.name!r}, which namespace {spec.namespace} does not have ({there}): set "
                f"it with `gpu-platform secrets set {use.name} --namespace {spec.namespace}`",
                secret=use.name,
            )
        if use.env is not None and not info.is_text:
            raise InvalidRequest(_no_variable(use.name), secret=use.name)


def launch_secrets(context: ServiceContext, key: AttemptKey, host: str) -> LaunchSecrets:
    """What the ranks of the attempt get on the host. Raises :class:`Forbidden`, :class:`NotFound` (a secret was
    deleted), :class:`InvalidRequest` and :class:`CannotOpen`."""
    held = job_tokens.held_attempt(context.store, key, host)
    if held is None:
        raise Forbidden(f"attempt {key} holds nothing on host {host}, or has ended")
    spec = JobSpec.model_validate_json(held.spec)
    names = {use.name for use in spec.secrets}
    values: dict[str, bytes] = {}
    if names:
        values = secrets.open_secrets(context.store, _ring(context.settings), held.namespace, names)
    given = LaunchSecrets()
    for use in spec.secrets:
        if use.env is not None:
            given.environ[use.env] = _text(use.name, values[use.name])
        elif use.file is not None:
            given.files[use.file] = base64.b64encode(values[use.name]).decode()
    if spec.job_token:
        given.token = job_tokens.issue(context.store, key, host, now())
    log.info("secrets.given", job=key.job_id, attempt=key.attempt, host=host, secrets=sorted(names))
    return given


async def keep_resealed(settings: Settings, store: Store) -> None:
    """After a rotation of the key ring, seal all secrets with the new key. Until cancelled."""
    while settings.key_ring is not None:
        try:
            if done := await run_in_threadpool(partial(secrets.reseal, store, _ring(settings))):
                log.info("secrets.resealed", secrets=done)
        except (PlatformError, OSError) as error:
            log.warning("secrets.not_resealed", error=str(error))
        await asyncio.sleep(RESEAL_EVERY_S)


def _ring(settings: Settings) -> KeyRing:
    if settings.key_ring is None:
        raise InvalidRequest(
            "this service keeps no secrets, because it has no key ring: make one with `gpu-platform keys create` and "
            "set key_ring"
        )
    return KeyRing.load(settings.key_ring).scoped(secrets.SCOPE)


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(_no_variable(name)) from None
    if "\0" in text:
        raise InvalidRequest(_no_variable(name))
    return text


def _no_variable(name: str) -> str:
    return f"the value of the secret {name!r} is not text, so it cannot be a variable: use --secret-file {name}"
