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


CUT = "audit.cut"
"""The action of an entry that says that older records were removed. No request has it: routes are called ``GET /…``."""


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


def cut_entry(removed: ChainHead, archive: str, at: datetime, actor: str) -> AuditEntry:
    """The entry about the removal of all records up to ``removed``, which are in ``archive`` now."""
    reason = f"sha256 {removed.hash} is the hash of the last record that was removed; archive: {archive}"
    return AuditEntry(at=at, actor=actor, action=CUT, target=str(removed.seq), verdict="allowed", reason=reason)


def cut_of(record: AuditRecord) -> ChainHead | None:
    """What was removed, if the record is about a removal."""
    if f'"action":"{CUT}"' not in record.entry:
        return None
    try:
        entry = record.decoded()
        return ChainHead(seq=int(entry.target), hash=(entry.reason or "").split(" ")[1])
    except (ValueError, IndexError):
        return None


class ChainCheck:
    """Follows the log from its beginning and collects what is wrong with it.

    ``expected``: heads of earlier times. ``start``: what comes before the first record, if that is known.
    """

    def __init__(self, expected: Iterable[ChainHead] = (), start: ChainHead = EMPTY) -> None:
        self.head = start
        self.problems: list[str] = []
        self.count = 0
        self.removed: ChainHead | None = None
        """What was removed from the beginning of the log, as the log itself says. None: nothing."""
        self._first: AuditRecord | None = None
        self._cuts: dict[int, ChainHead] = {}
        self._expected = {head.seq: head.hash for head in expected if head.seq > 0}

    def take(self, record: AuditRecord) -> None:
        """Check the next record."""
        self.count += 1
        if self.count == 1 and self.head == EMPTY and record.seq > 1:
            self._first = record  # its hash is checked at the end: the log itself says what came before it
        else:
            self._follow(record)
        expected = self._expected.pop(record.seq, None)
        if expected is not None and expected != record.hash:
            self.problems.append(f"record {record.seq} is not the one whose hash was kept: the log was rewritten")
        if (cut := cut_of(record)) is not None:
            self._cuts[cut.seq] = cut
        self.head = ChainHead(seq=record.seq, hash=record.hash)

    def _follow(self, record: AuditRecord) -> None:
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

    def finish(self) -> list[str]:
        """What is wrong, after the last record. Empty: nothing."""
        if self._first is not None:
            self._check_beginning(self._first)
        missing = [f"the log ends at record {self.head.seq}, and had record {seq} once" for seq in self._expected]
        return self.problems + missing

    def _check_beginning(self, first: AuditRecord) -> None:
        self.removed = cut = self._cuts.get(first.seq - 1)
        if cut is None:
            self.problems.append(
                f"the log begins at record {first.seq}, and no entry in it says that the records before were removed"
            )
        elif first.hash != hash_of(cut.hash, first.seq, first.entry):
            self.problems.append(
                f"record {first.seq} does not follow from what the log says was removed before it (up to {cut.seq})"
            )
        elif self._expected.pop(cut.seq, cut.hash) != cut.hash:
            self.problems.append(f"record {cut.seq}, which was removed, was not the one whose hash was kept")
        # Heads of records that were removed earlier are to be compared with their archive.
        self._expected = {seq: one for seq, one in self._expected.items() if cut is None or seq > cut.seq}
