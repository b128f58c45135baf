"""The columns of every list but that of jobs (``job_rows.py``), over the service's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from gpu_platform.cli import session
from gpu_platform.cli.show.listing import Column, Listing, Row, age, at, coloured_state, field
from gpu_platform.domain.texts import duration, one_line

CERTIFICATE_WARNING_S = 4 * 3600.0
"""A certificate of a day is renewed when 8 hours are left. So the renewal has failed for hours."""


_KWH_J = 3.6e6


def certificate(ends_at: datetime, now: datetime) -> str:
    """How long a certificate is still valid."""
    left_s = (ends_at - now).total_seconds()
    return f"ends in {duration(left_s)}" if left_s > 0 else f"ended {duration(-left_s)} ago"


def is_valid_token(token: Row) -> bool:
    """True unless the token was revoked or has expired."""
    ends = token.get("expires_at")
    return token.get("revoked_at") is None and (ends is None or datetime.fromisoformat(ends) > datetime.now(UTC))


def when_it_fires(request: Row) -> str:
    """When a schedule fires, as it was asked for."""
    if request.get("cron") is None:
        return f"every {duration(request.get('every_s') or 0)}"
    return one_line(f"{request['cron']} ({request['timezone']})")


def _host_note(host: Row) -> str:
    notes, ends = [host.get("reason")], host.get("certificate_ends_at")
    if ends is not None:
        now, ends_at = datetime.now(UTC), datetime.fromisoformat(ends)
        if (ends_at - now).total_seconds() <= CERTIFICATE_WARNING_S:
            notes.append(f"its certificate {certificate(ends_at, now)}")
    notes += [_kept(window) for window in (host.get("windows") or [])[:1]]
    return "; ".join(note for note in notes if note)


def _kept(window: Row) -> str:
    """For what and when a host, or a part of it, is kept next."""
    kind = "maintenance" if window["maintenance"] else "a reservation"
    start, end = (datetime.fromisoformat(window[name]) for name in ("start_at", "end_at"))
    what = "" if window["maintenance"] else f" ({window['gpus']} GPUs)"
    return f"kept for {kind}{what}, {start:%m-%d %H:%M} to {end:%m-%d %H:%M} UTC"


def _roles(token: Row) -> str:
    roles = token.get("roles") or {}
    return ", ".join(f"{role} in {'the cluster' if place == '*' else place}" for place, role in sorted(roles.items()))


def _why_it_waits(job: Row) -> str:
    return "not yet looked at" if job.get("reason") is None else job["reason"]["message"]


def _of_reason(job: Row, name: str) -> Any:
    return None if job.get("reason") is None else job["reason"].get(name)


def _unix(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def _seconds(left: float) -> str:
    return f"{left:.0f} s"


def _whole(checkpoint: Row) -> str:
    if checkpoint.get("problem"):
        return f"no: {checkpoint['problem']}"
    return f"yes, by {checkpoint.get('verified')}" + (", kept" if checkpoint.get("kept") else "")


def _what_was_asked(record: Row) -> str:
    action = record["action"]
    return f"{action.split(' ')[0]} {record['target']}" if record.get("target") else action


def _problem_of_root(root: Row) -> str:
    return root.get("problem") or (f"no answer from {', '.join(root['silent'])}" if root.get("silent") else "")


def show_deliveries(shown: Listing, found: Iterable[Row]) -> None:
    """Print what came of a message for each target, for people as sentences."""
    rows = [*found]
    if not shown.is_for_people or shown.is_chosen:
        shown.show(rows)
        return
    for one in rows:
        session.write(f"{one['target']}: " + ("sent" if one["sent"] else f"not sent: {one['reason']}"))


def _goes_to(target: Row) -> str:
    if not target.get("personal"):
        return "the operator's recipients"
    places = [target["address"]] if target.get("address") else []
    places += [f"addresses of {domain}" for domain in target.get("domains") or []]
    return ", ".join(places) or "your own address, which nobody told"


def energy(joules: float) -> str:
    """Joules as kWh, or as kJ if that is too small."""
    return f"{joules / _KWH_J:.3f} kWh" if joules >= _KWH_J / 10 else f"{joules / 1000:.1f} kJ"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _some_hosts(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


HOSTS = (
    Column("host", field("name")),
    Column("state", field("state"), text=coloured_state),
    Column("machine", lambda host: host["machine"] + (" (simulated)" if host.get("simulated") else "")),
    Column("leaf", field("leaf")),
    Column("address", field("address"), wide=True),
    Column("isolation", field("isolation"), wide=True),
    Column("free", field("gpus_free")),
    Column("gpus", field("gpus_total")),
    Column("lease", field("lease_remaining_s"), text=_seconds),
    Column("certificate", field("certificate_ends_at"), text=at, title="CERTIFICATE ENDS", wide=True),
    Column("note", _host_note),
)
GPUS = (
    Column("gpu", lambda gpu: f"{gpu['host']}:{gpu['info']['index']}"),
    Column("uuid", lambda gpu: gpu["info"]["uuid"], wide=True),
    Column("host", field("host"), wide=True),
    Column("model", lambda gpu: gpu["info"]["model"]),
    Column("memory_mib", lambda gpu: gpu["info"]["memory_mib"]),
    Column("state", field("state"), text=coloured_state),
    Column("host_state", field("host_state"), text=coloured_state),
    Column("jobs", lambda gpu: ", ".join(one["job_id"] for one in gpu.get("holders") or []) or None),
    Column("temperature_c", field("temperature_c")),
    Column("power_w", field("power_w")),
    Column("utilization_percent", field("utilization_percent")),
    Column("faults", field("fault_count")),
    Column("resets", field("reset_count")),
    Column("note", field("reason")),
)
QUEUE = (
    Column("place", field("position")),
    Column("job", field("job_id")),
    Column("name", lambda job: job["spec"]["name"]),
    Column("namespace", lambda job: job["spec"]["namespace"]),
    Column("user", lambda job: job["spec"]["user"]),
    Column("priority", lambda job: job["spec"].get("priority")),
    Column("attempt", field("attempt"), wide=True),
    Column("since", field("waiting_since"), text=at, title="WAITS SINCE"),
    Column("starts", lambda job: _unix(_of_reason(job, "estimated_start")), text=at),
    Column("promised", lambda job: _unix(_of_reason(job, "starts_by")), text=at, wide=True),
    Column("code", lambda job: _of_reason(job, "code"), wide=True),
    Column("why", _why_it_waits),
    Column("next_step", lambda job: _of_reason(job, "next_step"), title="NEXT STEP"),
)
TOKENS = (
    Column("id", field("id")),
    Column("user", field("user")),
    Column("roles", _roles, text=lambda roles: roles or "none"),
    Column("scopes", lambda token: "all" if token.get("scopes") is None else ", ".join(token["scopes"])),
    Column("expires", field("expires_at"), text=at),
    Column("revoked", field("revoked_at"), text=at, only_if_any=True),
    Column("last_used", field("last_used_at"), text=at, title="LAST USED"),
    Column("note", field("note")),
)
SECRETS = (
    Column("namespace", field("namespace")),
    Column("name", field("name")),
    Column("kind", lambda secret: "text" if secret["is_text"] else "binary"),
    Column("created_by", field("created_by"), title="MADE BY"),
    Column("created", field("created_at"), text=at, title="MADE", wide=True),
    Column("set", field("updated_at"), text=at),
    Column("set_by", field("updated_by"), title="SET BY"),
)
SCHEDULES = (
    Column("schedule", field("id")),
    Column("name", lambda one: one["request"]["job"]["name"]),
    Column("namespace", field("namespace"), wide=True),
    Column("user", field("user")),
    Column("state", lambda one: "paused" if one["paused"] else "active"),
    Column("when", lambda one: when_it_fires(one["request"])),
    Column("overlap", lambda one: one["request"]["overlap"]),
    Column("created", field("created_at"), text=at, title="MADE", wide=True),
    Column("note", field("note"), text=one_line),
)
RESERVATIONS = (
    Column("name", field("name")),
    Column("kind", lambda one: "maintenance" if one["maintenance"] else "reservation"),
    Column("state", lambda one: "open" if one["is_open"] else "coming"),
    Column("start", field("start_at"), text=at),
    Column("end", field("end_at"), text=at),
    Column("repeat", field("repeat")),
    Column("hosts", lambda one: ", ".join(host["host"] for host in one["hosts"])),
    Column("gpus", lambda one: sum(host["gpus"] for host in one["hosts"])),
    Column("namespaces", lambda one: ", ".join(one["namespaces"])),
    Column("users", lambda one: ", ".join(one["users"])),
    Column("reason", field("reason"), text=one_line),
)
PIPELINES = (
    Column("pipeline", field("id")),
    Column("name", field("name")),
    Column("namespace", field("namespace"), wide=True),
    Column("user", field("user")),
    Column("state", field("state"), text=coloured_state),
    Column("age", field("created_at"), text=age),
    Column("submitted", field("created_at"), text=at, wide=True),
)
CHECKPOINTS = (
    Column("checkpoint", lambda one: f"{one['attempt']}/{one['name']}" if one["name"] else str(one["attempt"])),
    Column("step", field("step")),
    Column("written", lambda one: _unix(one["written_at"]), text=at),
    Column("size", field("size_bytes"), text=_size),
    Column("whole", _whole),
    Column("hosts", field("hosts"), text=_some_hosts),
    Column("path", field("path")),
)
NOTIFICATION_TARGETS = (
    Column("target", field("name")),
    Column("kind", field("kind")),
    Column("namespaces", lambda one: "all" if "*" in one["namespaces"] else ", ".join(one["namespaces"])),
    Column("goes_to", _goes_to, title="GOES TO"),
)
AUDIT = (
    Column("number", field("seq")),
    Column("when", field("at"), text=at),
    Column("who", lambda one: one["actor"] + (f" as {one['acting_as']}" if one.get("acting_as") else "")),
    Column("from", field("peer")),
    Column("what", _what_was_asked),
    Column("decided", field("verdict")),
    Column("why", field("reason"), text=lambda reason: reason),
)
QUOTAS = (
    Column("namespace", field("namespace")),
    Column("held", field("held_gpus"), text=lambda gpus: f"{gpus:g}"),
    Column("guaranteed", field("guaranteed_gpus")),
    Column("limit", field("limit_gpus")),
    Column("per_user", field("max_gpus_per_user"), title="PER USER"),
    Column("waiting_jobs", field("waiting_jobs"), title="WAITING JOBS"),
    Column("longest_job_s", field("max_job_duration_s"), text=lambda s: f"{s / 3600:g} h", title="LONGEST JOB"),
)
_USAGE = (
    Column("gpu_hours", lambda one: one["gpu_seconds"] / 3600, text=lambda hours: f"{hours:.3f}", title="GPU-HOURS"),
    Column("energy_j", field("energy_j"), text=energy, title="ENERGY"),
    Column("cpu_hours", lambda one: one["cpu_s"] / 3600, text=lambda hours: f"{hours:.3f}", title="CPU-HOURS"),
    Column("ecc_errors", field("ecc_errors"), title="ECC"),
    Column("throttled_s", field("throttled_s"), text=lambda s: f"{s:.0f} s", title="THROTTLED"),
)
USAGE = (
    Column("namespace", field("namespace")),
    Column("user", field("user")),
    Column("attempts", field("attempts")),
    *_USAGE,
)
USAGE_OF_JOB = (
    Column("attempt", field("attempt")),
    Column("gpus", field("gpus")),
    Column("ended", field("ended_at"), text=at, wide=True),
    Column("utilization_percent", field("mean_utilization_percent"), text=lambda share: f"{share:.0f} %", title="UTIL"),
    Column("peak_gpu_memory_mib", field("peak_gpu_memory_mib"), title="GPU MEMORY (MIB)"),
    Column("peak_memory_mib", field("peak_memory_mib"), title="MEMORY (MIB)", wide=True),
    *_USAGE,
    Column("unmeasured_hosts", field("unmeasured_hosts"), text=", ".join, title="NOT MEASURED"),
)
REPORT = tuple(Column(name, field(name)) for name in ("table", "name", "figure", "value"))
MACHINES = (
    Column("type", field("id")),
    Column("name", field("name")),
    Column("gpus", field("gpus")),
    Column("model", field("model")),
    Column("memory_mib", field("memory_mib"), wide=True),
)
KEYS = (
    Column("key", field("id")),
    Column("seals_from", field("seals_from"), text=lambda time: at(time) if time else "the beginning"),
)
FLEET = (
    Column("host", field("host")),
    Column("leaf", field("leaf")),
    Column("power", field("power")),
)
CHECKPOINT_ROOTS = (
    Column("hosts", field("hosts"), text=", ".join),
    Column("shared", lambda one: "yes" if len(one["hosts"]) > 1 else "no"),
    Column("problem", _problem_of_root, text=lambda problem: problem or ""),
)
DELIVERIES = (
    Column("target", field("target")),
    Column("sent", field("sent"), text=lambda sent: "yes" if sent else "no"),
    Column("reason", field("reason")),
)
