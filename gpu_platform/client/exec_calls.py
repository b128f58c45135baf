"""The requests of the REST API about commands beside a rank, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client.calls import Call, given, quoted

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.exec import ExecRequest, ExecSession


def exec_start(job_id: str, request: ExecRequest) -> Call:
    """Start a command beside a rank: ``POST /v1/jobs/{job_id}/exec``."""
    # If the answer is lost, nobody knows whether it started. Then it ends because nobody reads its output.
    return Call("POST", f"/v1/jobs/{quoted(job_id)}/exec", body=request.model_dump_json().encode(), repeatable=False)


def exec_sessions(job_id: str, rank: int) -> Call:
    """List the own sessions beside a rank: ``GET /v1/jobs/{job_id}/exec``."""
    return Call("GET", f"/v1/jobs/{quoted(job_id)}/exec", given(rank=rank))


def exec_attach(session: ExecSession, rows: int, columns: int) -> Call:
    """Go on with a session from this client: ``POST /v1/jobs/{job_id}/exec/{session_id}/attach``."""
    return Call("POST", f"{_exec_path(session)}/attach", given(rows=rows, columns=columns))


def exec_connect(session: ExecSession) -> Call:
    """Open a connection to the port of a session: ``POST /v1/jobs/{job_id}/exec/{session_id}/connections``."""
    # If the answer is lost, the host closes the connection because nobody reads it.
    return Call("POST", f"{_exec_path(session)}/connections", repeatable=False)


def exec_output(session: ExecSession, offset: int, attachment: int = 0) -> Call:
    """Follow the output of a command: ``GET /v1/jobs/{job_id}/exec/{session_id}``."""
    return Call("GET", _exec_path(session), given(offset=offset, attachment=attachment or None))


def exec_input(session: ExecSession, data: bytes, offset: int, eof: bool, attachment: int = 0) -> Call:
    """Send input to a command: ``POST /v1/jobs/{job_id}/exec/{session_id}/input``."""
    return Call(
        "POST",
        f"{_exec_path(session)}/input",
        given(offset=offset, eof=eof, attachment=attachment or None),
        body=data,
        headers={"Content-Type": "application/octet-stream"},
        patience_s=5.0,
    )


def exec_resize(session: ExecSession, rows: int, columns: int) -> Call:
    """Set the size of a command's terminal: ``POST /v1/jobs/{job_id}/exec/{session_id}/size``."""
    return Call("POST", f"{_exec_path(session)}/size", given(rows=rows, columns=columns))


def exec_end(session: ExecSession) -> Call:
    """Kill a command: ``DELETE /v1/jobs/{job_id}/exec/{session_id}``."""
    return Call("DELETE", _exec_path(session))


def _exec_path(session: ExecSession) -> str:
    return f"/v1/jobs/{quoted(session.job_id)}/exec/{quoted(session.id)}"
