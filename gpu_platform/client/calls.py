"""The requests of the REST API as data. Both clients use them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from datetime import datetime

    from gpu_platform.domain.jobs.array import ArraySpec
    from gpu_platform.domain.jobs.changes import JobChanges
    from gpu_platform.domain.jobs.spec import JobSpec
    from gpu_platform.domain.jobs.work_kind import WorkKind
    from gpu_platform.domain.placing.what_if import WhatIfRequest
    from gpu_platform.domain.states import ArrayState, GpuState, JobState

LONG_POLL_S = 20.0
USER_HEADER = "X-GPU-Platform-User"
"""The user in whose name an operator of the cluster acts. Nobody else may send it with another name than their own."""
BREAK_GLASS_HEADER = "X-GPU-Platform-Break-Glass"
"""Why an operator reads the output of a job of somebody else, or enters it. It is recorded."""

UPLOAD_SIZE_HEADER = "X-GPU-Platform-Upload-Size"
"""Bytes of a whole archive, beside a part of it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request to the service."""

    method: str
    path: str
    params: dict[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """It may be sent again if nobody knows whether it arrived."""
    patience_s: float = 0.0
    """How many seconds the service itself may wait before it answers."""

    @property
    def target(self) -> str:
        """Path and query, as they stand in a request."""
        return f"{self.path}?{urlencode(self.params, doseq=True)}" if self.params else self.path


def submit(spec: JobSpec | dict[str, Any], idempotency_key: str | None) -> Call:
    """Submit a job, or its fields, which the service checks. The idempotency key makes it safe to repeat:
    ``POST /v1/jobs``."""
    # The key makes a retry safe. If the caller has none, one is made for this call.
    return Call(
        "POST",
        "/v1/jobs",
        body=_spec(spec),
        headers={"Idempotency-Key": idempotency_key or secrets.token_hex(16)},
    )


def _spec(spec: JobSpec | dict[str, Any]) -> bytes:
    """The job as JSON, with all fields that were set, also those equal to a default: the cluster may have other
    defaults."""
    if isinstance(spec, dict):
        return json.dumps(spec, default=_of_yaml).encode()
    return spec.model_dump_json(exclude_unset=True).encode()


def _of_yaml(value: object) -> str:
    """What YAML has and JSON has not. Times are what a person may write in a file of a job."""
    isoformat = getattr(value, "isoformat", None)
    if isoformat is None:
        raise InvalidRequest(f"the job has {value!r}, which JSON cannot carry: write a text or a number")
    return isoformat()


def dry_run(spec: JobSpec) -> Call:
    """Ask where and when a job would start: ``POST /v1/jobs:dry-run``."""
    return Call("POST", "/v1/jobs:dry-run", body=_spec(spec), patience_s=60.0)


def checkpoints(job_id: str, verify: bool) -> Call:
    """List the checkpoints of a job: ``GET /v1/jobs/{job_id}/checkpoints``."""
    # Reading every byte of a checkpoint can take minutes.
    path = f"/v1/jobs/{quoted(job_id)}/checkpoints"
    return Call("GET", path, given(verify=verify or None), patience_s=600.0 if verify else 10.0)


def ask_for_checkpoint(job_id: str) -> Call:
    """Ask a job for a checkpoint: ``POST /v1/jobs/{job_id}/checkpoints``."""
    return Call("POST", f"/v1/jobs/{quoted(job_id)}/checkpoints")


def check_checkpoint_roots() -> Call:
    """Test which hosts share a checkpoint root: ``POST /v1/checkpoint-roots:check``."""
    return Call("POST", "/v1/checkpoint-roots:check", patience_s=60.0)


def clocks() -> Call:
    """Compare the clocks of database and hosts with the service's: ``GET /v1/clocks``."""
    return Call("GET", "/v1/clocks", patience_s=60.0)


def reason(job_id: str) -> Call:
    """Ask why a job waits: ``GET /v1/jobs/{job_id}/reason``."""
    return Call("GET", f"/v1/jobs/{quoted(job_id)}/reason", patience_s=60.0)


def queue(namespace: str | None, cursor: str | None, limit: int) -> Call:
    """List waiting jobs, one page: ``GET /v1/queue``."""
    return Call("GET", "/v1/queue", given(namespace=namespace, cursor=cursor, limit=limit))


def quotas(cursor: str | None) -> Call:
    """List namespaces with their quotas, one page: ``GET /v1/quotas``."""
    return Call("GET", "/v1/quotas", given(cursor=cursor))


def what_if(asked: WhatIfRequest) -> Call:
    """Ask what the scheduler would do: ``POST /v1/snapshot:what-if``."""
    return Call(
        "POST", "/v1/snapshot:what-if", body=asked.model_dump_json(exclude_unset=True).encode(), patience_s=90.0
    )


def snapshot() -> Call:
    """Get the state of the cluster: ``GET /v1/snapshot``."""
    return Call("GET", "/v1/snapshot", patience_s=60.0)


def job(job_id: str, wait_s: float = 0.0) -> Call:
    """Get a job, and wait up to ``wait_s`` seconds for its end: ``GET /v1/jobs/{job_id}``."""
    params = {"wait_s": round(wait_s, 3)} if wait_s > 0 else {}
    return Call("GET", f"/v1/jobs/{quoted(job_id)}", params, patience_s=wait_s)


def jobs(
    states: Iterable[JobState | str] | None,
    namespace: str | None,
    user: str | None,
    name: str | None,
    kind: WorkKind | str | None,
    cursor: str | None,
    limit: int,
) -> Call:
    """List jobs, one page: ``GET /v1/jobs``."""
    return _listed("/v1/jobs", states, namespace, user, name, kind, cursor, limit)


def _listed(
    path: str,
    states: Iterable[JobState | ArrayState | str] | None,
    namespace: str | None,
    user: str | None,
    name: str | None,
    kind: WorkKind | str | None,
    cursor: str | None,
    limit: int,
) -> Call:
    wanted = [str(state) for state in states] if states else None
    params = given(state=wanted, namespace=namespace, user=user, name=name, kind=kind, cursor=cursor, limit=limit)
    return Call("GET", path, params)


def arrays(
    states: Iterable[ArrayState | str] | None,
    namespace: str | None,
    user: str | None,
    name: str | None,
    kind: WorkKind | str | None,
    cursor: str | None,
    limit: int,
) -> Call:
    """List arrays, one page: ``GET /v1/arrays``."""
    return _listed("/v1/arrays", states, namespace, user, name, kind, cursor, limit)


def submit_array(spec: JobSpec, array: ArraySpec, idempotency_key: str | None) -> Call:
    """Submit an array: ``POST /v1/arrays``."""
    # The service reads up to 8 MiB of parameters.
    body = b'{"job": ' + _spec(spec) + b', "array": ' + array.model_dump_json(exclude_unset=True).encode() + b"}"
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
    return Call("POST", "/v1/arrays", body=body, headers=headers, patience_s=30.0)


def array(array_id: str, wait_s: float = 0.0) -> Call:
    """Get an array, and wait up to ``wait_s`` seconds for its end: ``GET /v1/arrays/{array_id}``."""
    params = {"wait_s": round(wait_s, 3)} if wait_s > 0 else {}
    return Call("GET", f"/v1/arrays/{quoted(array_id)}", params, patience_s=wait_s)


def elements(array_id: str, states: Iterable[JobState | str] | None, cursor: str | None, limit: int) -> Call:
    """List elements of an array, one page: ``GET /v1/jobs``."""
    wanted = [str(state) for state in states] if states else None
    return Call("GET", "/v1/jobs", given(array=array_id, state=wanted, cursor=cursor, limit=limit))


def interrupt_array(verb: str, array_id: str, reason: str, elements: str | None) -> Call:
    """Cancel or kill an array, or some elements: ``POST /v1/arrays/{array_id}/{verb}``."""
    body = json.dumps(given(reason=reason, elements=elements)).encode()
    return Call("POST", f"/v1/arrays/{quoted(array_id)}/{verb}", body=body)


def retry_array(array_id: str, elements: str | None, idempotency_key: str | None) -> Call:
    """Run elements of an array again: ``POST /v1/arrays/{array_id}/retry``."""
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
    body = json.dumps(given(elements=elements)).encode()
    return Call("POST", f"/v1/arrays/{quoted(array_id)}/retry", body=body, headers=headers, patience_s=30.0)


def retry(job_id: str, idempotency_key: str | None) -> Call:
    """Submit a job again that has ended: ``POST /v1/jobs/{job_id}/retry``."""
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
    return Call("POST", f"/v1/jobs/{quoted(job_id)}/retry", headers=headers)


def interrupt(verb: str, job_id: str, reason: str) -> Call:
    """Cancel, kill or preempt a job. ``preempt`` must not be repeated: ``POST /v1/jobs/{job_id}/{verb}``."""
    # A second `preempt` would stop the next attempt. To cancel or kill twice does no harm.
    return Call("POST", f"/v1/jobs/{quoted(job_id)}/{verb}", body=why(reason), repeatable=verb != "preempt")


def change(job_id: str, changes: JobChanges) -> Call:
    """Change a job that waits: ``PATCH /v1/jobs/{job_id}``."""
    return Call("PATCH", f"/v1/jobs/{quoted(job_id)}", body=changes.model_dump_json(exclude_unset=True).encode())


def change_array(array_id: str, changes: JobChanges, elements: str | None) -> Call:
    """Change an array, or some elements, that wait: ``PATCH /v1/arrays/{array_id}``."""
    body = {**changes.model_dump(mode="json", exclude_unset=True), **given(elements=elements)}
    return Call("PATCH", f"/v1/arrays/{quoted(array_id)}", body=json.dumps(body).encode(), patience_s=30.0)


def hold(job_id: str, reason: str) -> Call:
    """Hold a job or an array: ``POST /v1/jobs/{job_id}/hold``, ``POST /v1/arrays/{array_id}/hold``."""
    return Call("POST", f"{_job_or_array(job_id)}/hold", body=why(reason))


def release(job_id: str) -> Call:
    """Release a job or an array: ``POST /v1/jobs/{job_id}/release``, ``POST /v1/arrays/{array_id}/release``."""
    return Call("POST", f"{_job_or_array(job_id)}/release", repeatable=False)


def _job_or_array(job_id: str) -> str:
    return f"/v1/{'arrays' if is_array_id(job_id) else 'jobs'}/{quoted(job_id)}"


def job_events(job_id: str, after: int | None, follow: bool) -> Call:
    """Get the events of a job, or follow them: ``GET /v1/jobs/{job_id}/events``."""
    return Call("GET", f"/v1/jobs/{quoted(job_id)}/events", given(after=after, follow=follow or None))


def events(after: int | None, follow: bool) -> Call:
    """Get all events, or follow them: ``GET /v1/events``."""
    return Call("GET", "/v1/events", given(after=after, follow=follow))


def logs(job_id: str, rank: int, attempt: int | None, follow: bool) -> Call:
    """Get the output of a rank, or follow it: ``GET /v1/jobs/{job_id}/logs``."""
    return Call("GET", f"/v1/jobs/{quoted(job_id)}/logs", given(rank=rank, attempt=attempt, follow=follow or None))


def job_usage(job_id: str) -> Call:
    """Get the usage of a job: ``GET /v1/jobs/{job_id}/usage``."""
    return Call("GET", f"/v1/jobs/{quoted(job_id)}/usage")


def usage(namespace: str | None, user: str | None, since: datetime | None, until: datetime | None) -> Call:
    """Get the sums of usage: ``GET /v1/usage``."""
    times = {name: None if at is None else at.isoformat() for name, at in (("since", since), ("until", until))}
    return Call("GET", "/v1/usage", given(namespace=namespace, user=user, **times))


def report(since: datetime | None, until: datetime | None) -> Call:
    """Get the key figures of the cluster: ``GET /v1/report``."""
    times = {name: None if at is None else at.isoformat() for name, at in (("since", since), ("until", until))}
    return Call("GET", "/v1/report", given(**times))


def ready() -> Call:
    """Ask whether the service can do its work: ``GET /readyz``."""
    return Call("GET", "/readyz", patience_s=5.0)


def counts() -> Call:
    """Count hosts and GPUs by state: ``GET /v1/cluster``."""
    return Call("GET", "/v1/cluster")


def hosts(cursor: str | None) -> Call:
    """List hosts, one page: ``GET /v1/hosts``."""
    return Call("GET", "/v1/hosts", given(cursor=cursor))


def host(name: str) -> Call:
    """Get a host: ``GET /v1/hosts/{name}``."""
    return Call("GET", f"/v1/hosts/{quoted(name)}")


def enroll_host(name: str, address: str | None, valid_s: float) -> Call:
    """Make a join token for a host: ``POST /v1/hosts/{name}/enroll``."""
    body = json.dumps({"address": address, "valid_s": valid_s}).encode()
    return Call("POST", f"/v1/hosts/{quoted(name)}/enroll", body=body)


def revoke_host(name: str) -> Call:
    """Revoke a host's certificates: ``DELETE /v1/hosts/{name}/identity``."""
    return Call("DELETE", f"/v1/hosts/{quoted(name)}/identity")


def remove_host(name: str) -> Call:
    """Forget a host: ``DELETE /v1/hosts/{name}``."""
    return Call("DELETE", f"/v1/hosts/{quoted(name)}")


def set_host(name: str, verb: str, force: bool, reason: str) -> Call:
    """Drain a host, take it offline, put it online, or declare it lost: ``POST /v1/hosts/{name}/{verb}``."""
    return Call("POST", f"/v1/hosts/{quoted(name)}/{verb}", given(force=force or None), body=why(reason))


def gpus(host_name: str | None, states: Iterable[GpuState | str] | None, cursor: str | None) -> Call:
    """List GPUs, one page: ``GET /v1/gpus``."""
    wanted = [str(state) for state in states] if states else None
    return Call("GET", "/v1/gpus", given(host=host_name, state=wanted, cursor=cursor))


def gpu(gpu_id: str) -> Call:
    """Get a GPU: ``GET /v1/gpus/{gpu_id}``."""
    return Call("GET", f"/v1/gpus/{quoted(gpu_id)}")


def gpu_health(gpu_id: str) -> Call:
    """Get what a GPU measures now: ``GET /v1/gpus/{gpu_id}/health``."""
    return Call("GET", f"/v1/gpus/{quoted(gpu_id)}/health")


def gpu_events(gpu_id: str, limit: int) -> Call:
    """Get the newest events of a GPU: ``GET /v1/gpus/{gpu_id}/events``."""
    return Call("GET", f"/v1/gpus/{quoted(gpu_id)}/events", {"limit": limit})


def set_gpu(gpu_id: str, verb: str, force: bool, reason: str) -> Call:
    """Drain a GPU, take it offline, or put it online: ``POST /v1/gpus/{gpu_id}/{verb}``."""
    return Call("POST", f"/v1/gpus/{quoted(gpu_id)}/{verb}", given(force=force or None), body=why(reason))


def test_notifications(target: str | None) -> Call:
    """Send a test message to one target of notifications, or to all: ``POST /v1/alerts:test``."""
    return Call("POST", "/v1/alerts:test", given(target=target), repeatable=False, patience_s=90.0)


def notification_targets() -> Call:
    """List the targets that one may name in ``notify`` of a job: ``GET /v1/notifications``."""
    return Call("GET", "/v1/notifications")


def test_notification_target(target: str, address: str | None) -> Call:
    """Send a test message to a target that one may name: ``POST /v1/notifications:test``."""
    wanted = given(target=target, address=address)
    return Call("POST", "/v1/notifications:test", wanted, repeatable=False, patience_s=90.0)


def remediation(gpu_id: str) -> Call:
    """Get the state of the remediation of a GPU: ``GET /v1/gpus/{gpu_id}/remediation``."""
    return Call("GET", f"/v1/gpus/{quoted(gpu_id)}/remediation")


def order_remediation(gpu_id: str, verb: str, reason: str) -> Call:
    """Approve or veto the next step of a remediation: ``POST /v1/gpus/{gpu_id}/remediation/{verb}``."""
    return Call("POST", f"/v1/gpus/{quoted(gpu_id)}/remediation/{verb}", body=why(reason), repeatable=False)


def service_case(gpu_id: str) -> Call:
    """Get the record of a GPU for its vendor: ``GET /v1/gpus/{gpu_id}/service-case``."""
    return Call("GET", f"/v1/gpus/{quoted(gpu_id)}/service-case")


def why(reason: str) -> bytes | None:
    """The body that carries a reason. None: there is none."""
    return json.dumps({"reason": reason}).encode() if reason else None


def given(**params: Any) -> dict[str, Any]:
    """The parameters that have a value, as a query has them."""
    present = {name: value for name, value in params.items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in present.items()}


def quoted(part: str) -> str:
    """A part of a path. It is never empty: that would be another path."""
    return quote(part, safe="") or "-"
