"""Commands that people run beside a rank (``jobs exec``), and connections into it (``jobs forward``): the requests, and
the answers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, model_validator

UNREAD_S = 30
"""A session ends if nobody has read its output for this many seconds, unless its request says another time."""
MAX_UNREAD_S = 7 * 24 * 3600


class ExecRequest(BaseModel):
    """What runs where a rank runs: in its cgroup, namespaces, user, environment and directory. Either a command, or
    connections to a port at which the rank listens."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[str], Field(max_length=4096, description="argv", examples=[["nvidia-smi"]])] = []
    rank: Annotated[int, Field(ge=0)] = 0
    tty: Annotated[bool, Field(description="With a terminal, where stdout and stderr are one stream")] = False
    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    columns: Annotated[int, Field(ge=1, le=10_000)] = 80
    term: Annotated[str | None, Field(max_length=64, pattern=r"^[\x21-\x7e]+$", description="TERM of the terminal")] = (
        None
    )
    unread_s: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_UNREAD_S,
            description="The command ends if nobody has read its output for this many seconds; default: 30",
        ),
    ] = None
    port: Annotated[
        int | None,
        Field(
            ge=1,
            le=65_535,
            description="Instead of a command: the session opens connections to this TCP port of the rank",
        ),
    ] = None

    @model_validator(mode="after")
    def _asks_for_one_thing(self) -> Self:
        if bool(self.command) == (self.port is not None):
            raise ValueError("say either a command to run, or a port to connect to")
        return self


class ExecSession(BaseModel):
    """A command that was started, or a way to a port. It ends with its rank, or when nobody has read its output for
    its ``unread_s``."""

    id: str
    job_id: str
    attempt: int
    rank: int
    host: str


class ExecInfo(BaseModel):
    """A session that runs, or ended a short time ago."""

    session: ExecSession
    command: list[str] = []
    tty: bool = False
    port: int | None = None
    readers: int = 0
    """How many read its output now."""
    ended: bool = False


class ExecAttached(BaseModel):
    """Where a client that attaches to a session goes on. Whoever read it before is told, and reads no more of it."""

    session: ExecSession
    attachment: int
    """Number of this attachment. The output and the input of a session are for its newest one."""
    offset: int
    """Where the last screenful of output begins, in bytes."""
    received: int
    """How many bytes of input it has got so far: the next input begins there."""


class ExecChunk(BaseModel):
    """A piece of output, or the end. Both streams share one offset, so that a reader can continue where it stopped."""

    stream: Literal["stdout", "stderr", "exit", "eof", "detached"]
    """``eof``: the program closed its side of the connection, and may still read. ``detached``: somebody else attached,
    so this reader gets no more."""
    data: Base64Bytes = b""
    next_offset: int
    exit_code: int | None = None
    """Set at the end; 128 + n if signal n ended the command."""
    reason: str | None = None
    """Why it ended, if it did not end by itself."""


class ExecReceived(BaseModel):
    """How many bytes of its input the command has got so far. The client sends on from there."""

    received: int
