"""What to do after an error, by its code. Messages say what was asked and what there was; this says what to do next."""

from __future__ import annotations

NEXT_STEPS: dict[str, str] = {
    "internal": "look for this time in the log of the service, and check the deployment: gpu-platform doctor",
    "invalid_request": "read what the command takes: the same command with --help",
    "impossible_request": "ask for less, or see what hosts there are: gpu-platform hosts list",
    "over_quota": "end or wait for jobs of the namespace: gpu-platform jobs list --namespace NAMESPACE",
    "idempotency_conflict": "take another --idempotency-key, or look at what it made: gpu-platform jobs list",
    "not_signed_in": "sign in: gpu-platform login, or set GPU_PLATFORM_TOKEN",
    "forbidden": "see what you may do: gpu-platform whoami; an administrator of the namespace gives roles",
    "not_found": "see what there is: gpu-platform jobs list, gpu-platform hosts list",
    "answer_too_large": "ask for less at once, or over REST: --transport rest",
    "events_gone": "begin with the events that are kept: the same command without a number to begin after",
    "illegal_transition": "see its state: gpu-platform jobs describe JOB, gpu-platform hosts describe HOST",
    "in_use": "wait until nothing runs there (gpu-platform drain HOST --wait), or stop it with --force",
    "port_closed": "start the server in the job, at 127.0.0.1, or read its output: gpu-platform jobs logs JOB",
    "reservation_conflict": "try again: the scheduler places the job anew",
    "asks_otherwise": "nothing: the job asks for its place in another way",
    "stale_epoch": "try again: another scheduler leads now",
    "stale_report": "nothing: the host has sent a newer report",
    "full_report_needed": "nothing: the host sends a full report",
    "workflow_is_older": "nothing: a new workflow takes over the job; see gpu-platform jobs describe JOB",
    "host_unavailable": "see whether the host reports: gpu-platform hosts list",
    "preflight_failed": "see why on its host: gpu-platform jobs describe JOB",
    "no_result": "see how the job ended: gpu-platform jobs describe JOB, gpu-platform jobs logs JOB",
    "not_sent": "correct the target in notifications.targets, then try it: gpu-platform alerts test",
    "plugin_failed": "see which plugin is off: gpu-platform status; correct it, and start the scheduler again",
    "cannot_open": "see which keys the ring has: gpu-platform keys list",
    "unavailable": "check what is away: gpu-platform doctor; then try again",
    "too_many_requests": "wait, then ask less often: one `jobs wait` instead of many `jobs describe`",
    "storage_full": "make room on the disk of the database, then try again",
    "order_refused": "see whether host and control plane have keys of one cluster: gpu-platform doctor",
    "cannot_start": "check settings, ports and files of this machine: gpu-platform doctor",
}
"""The code of an error -> what to do. A code of another release has none."""


def next_step(code: str, message: str) -> str | None:
    """What to do after this error. None: its message says it already, or nobody knows."""
    says_it = any(command in message for command in ("gpu-platform ", "pip install "))
    return None if says_it else NEXT_STEPS.get(code)
