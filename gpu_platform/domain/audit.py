"""The audit log: who asked for what, as whom, from where, and what was decided.

Each record carries the hash of the record before it, so that nobody can change, remove, insert or reorder records
without a trace. The end of the log can still be cut off: that is found by comparing with a :class:`ChainHead` that
was kept elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime

from pydantic import BaseModel

FIRST_HASH = hashlib.sha256(b"gpu-platform audit log").hexdigest()
"""The hash "before" the first record."""


class AuditEntry(BaseModel):
    """One decision about a request, or one act."""

    at: datetime
    actor: str
    """Who asked: a user, ``node/dgx-a``, ``job/j-1``, or ``anonymous``."""
    acting_as: str | None = None
    """The user in whose name an operator asked."""
    peer: str | None = None
    """The address from which the request came."""
    action: str
    """The route, e.g. ``POST /v1/jobs/{job_id}/kill``, or the act."""
    target: str = ""
    """The path of the request."""
    verdict: str
    """``allowed``, or why it was refused, e.g. ``forbidden``, ``not_signed_in``."""
    reason: str | None = None
    """What the one who asked gave as a reason, or why it was refused."""
    request_id: str | None = None
    """The id of the request in the service's log."""

    def canonical(self) -> str:
        """The entry as the one JSON text that is hashed: sorted names, no spaces, ASCII."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


class AuditRecord(BaseModel):
    """One line of the log: a numbered entry and its hash."""

    seq: int
    """1 for the first record, then without gaps."""
    entry: str
    """The canonical JSON of an :class:`AuditEntry`. It is kept as text, so that later releases hash the same."""
    hash: str
    """SHA-256 of the hash before it, the number and the entry, as hexadecimal digits."""

    def decoded(self) -> AuditEntry:
        """The entry. Raises ``ValueError`` if the text was tampered with so that it is none."""
        return AuditEntry.model_validate_json(self.entry)


class ChainHead(BaseModel):
    """How far the log went at some time. Kept elsewhere, it proves later that nothing up to there is gone."""

    seq: int
    hash: str


EMPTY = ChainHead(seq=0, hash=FIRST_HASH)
"""The head of a log without records."""


def chained(head: ChainHead, entries: Iterable[str]) -> Iterator[AuditRecord]:
    """The records for canonical entries that follow ``head``."""
    for entry in entries:
        seq = head.seq + 1
        head = ChainHead(seq=seq, hash=hash_of(head.hash, seq, entry))
        yield AuditRecord(seq=seq, entry=entry, hash=head.hash)


def hash_of(before: str, seq: int, entry: str) -> str:
    """The hash of a record."""
    return hashlib.sha256(f"{before}\n{seq}\n{entry}".encode()).hexdigest()


class ChainCheck:
    """Follows the log from its beginning and collects what is wrong with it."""

    def __init__(self, expected: Iterable[ChainHead] = ()) -> None:
        self.head = EMPTY
        self.problems: list[str] = []
        self._expected = {head.seq: head.hash for head in expected if head.seq > 0}

    def take(self, record: AuditRecord) -> None:
        """Check the next record."""
        if record.seq != self.head.seq + 1:
            self.problems.append(
                f"record {self.head.seq + 1} is missing: {record.seq} follows {self.head.seq}"
                if record.seq > self.head.seq
                else f"record {record.seq} stands after record {self.head.seq}"
            )
        if record.hash != hash_of(self.head.hash, record.seq, record.entry):
            self.problems.append(
                f"record {record.seq} or the one before it was changed: its hash does not follow from them"
            )
        expected = self._expected.pop(record.seq, None)
        if expected is not None and expected != record.hash:
            self.problems.append(f"record {record.seq} is not the one whose hash was kept: the log was rewritten")
        self.head = ChainHead(seq=record.seq, hash=record.hash)

    def finish(self) -> list[str]:
        """What is wrong, after the last record. Empty: nothing."""
        missing = [f"the log ends at record {self.head.seq}, and had record {seq} once" for seq in self._expected]
        return self.problems + missing
