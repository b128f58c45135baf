"""Commands that people run beside a rank (``jobs exec``): what is asked, and what comes back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field


class ExecRequest(BaseModel):
    """A command for the place where a rank runs: its cgroup, namespaces, user, environment and directory."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[str], Field(min_length=1, max_length=4096, description="argv", examples=[["nvidia-smi"]])]
    rank: Annotated[int, Field(ge=0)] = 0
    tty: Annotated[bool, Field(description="With a terminal, where stdout and stderr are one stream")] = False
    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    columns: Annotated[int, Field(ge=1, le=10_000)] = 80
    term: Annotated[str | None, Field(max_length=64, pattern=r"^[\x21-\x7e]+$", description="TERM of the terminal")] = (
        None
    )


class ExecSession(BaseModel):
    """A command that was started. It ends with its rank, or when nobody has read its output for 30 s."""

    id: str
    job_id: str
    attempt: int
    rank: int
    host: str


class ExecChunk(BaseModel):
    """A piece of output, or the end. Streams share one offset, so that a reader can go on where it was."""

    stream: Literal["stdout", "stderr", "exit"]
    data: Base64Bytes = b""
    next_offset: int
    exit_code: int | None = None
    """At the end; 128 + n when signal n ended it."""
    reason: str | None = None
    """Why it ended, if not by itself."""


class ExecReceived(BaseModel):
    """How many bytes of its input the command has been given so far; send on from there."""

    received: int
