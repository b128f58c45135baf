"""Commands that people run beside a rank (``jobs exec``): the request, and the answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field


class ExecRequest(BaseModel):
    """A command to run where a rank runs: in its cgroup, namespaces, user, environment and directory."""

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
    """A piece of output, or the end. Both streams share one offset, so that a reader can continue where it stopped."""

    stream: Literal["stdout", "stderr", "exit"]
    data: Base64Bytes = b""
    next_offset: int
    exit_code: int | None = None
    """Set at the end; 128 + n if signal n ended the command."""
    reason: str | None = None
    """Why it ended, if it did not end by itself."""


class ExecReceived(BaseModel):
    """How many bytes of its input the command has got so far. The client sends on from there."""

    received: int
