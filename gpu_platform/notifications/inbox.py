"""The notices of one user: which wait, which are on their way, and how many messages an hour took. The state of the
workflow that tells a user; it knows no clock.

Each destination (a target, or a target and an address) is told by itself: one that is away holds up no other. The limit
of messages counts for the user, so that many addresses are no way around it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import BaseModel

from gpu_platform.domain.notices import Notice
from gpu_platform.notifications.job_notices import destination

HOUR = timedelta(hours=1)
MOST_WAITING = 300
"""Notices that one inbox holds with their texts. Of more it only counts how many there were."""
MOST_DESTINATIONS = 50
MOST_LATER = 500
"""Notices that are due later. Of more, those that are due last are dropped."""
REMEMBERED = 2000
"""Ids of notices by which one that comes twice is known. The follower repeats at most one look."""


class WaitingNotices(BaseModel):
    """What one destination is to be told."""

    target: str
    address: str | None = None
    notices: list[Notice] = []
    left_out: int = 0
    """How many more there were."""
    since: datetime | None = None
    """When their message was first tried. None: it was not tried yet."""


class Inbox(BaseModel):
    """The notices of one user."""

    user: str
    waiting: dict[str, WaitingNotices] = {}
    """By destination."""
    later: list[Notice] = []
    """Not due yet."""
    seen: list[str] = []
    """The ids of the newest notices."""
    sent_at: list[datetime] = []
    """The messages of the last hour."""

    def take(self, notices: list[Notice]) -> None:
        """Note what happened. A notice that was taken before changes nothing."""
        known = set(self.seen)
        for notice in notices:
            if notice.id in known:
                continue
            known.add(notice.id)
            self.seen.append(notice.id)
            if notice.due_at is None:
                self._add(notice)
            else:
                self.later.append(notice)
        self.seen = self.seen[-REMEMBERED:]
        self.later = sorted(self.later, key=_due)[:MOST_LATER]

    def take_due(self, now: datetime) -> list[Notice]:
        """Those that are due by now, without them in ``later``; :meth:`tell` puts back what is to be told."""
        due = [notice for notice in self.later if _due(notice) <= now]
        self.later = [notice for notice in self.later if _due(notice) > now]
        return due

    def tell(self, notice: Notice) -> None:
        """Tell a notice that was due later."""
        self._add(notice)

    def room(self, now: datetime, per_hour: int) -> int:
        """How many messages the user may get now."""
        self.sent_at = [at for at in self.sent_at if at + HOUR > now]
        return max(0, per_hour - len(self.sent_at))

    def has_room_at(self, now: datetime, per_hour: int) -> datetime | None:
        """When the user may get a message again. None: now."""
        if self.room(now, per_hour):
            return None
        return self.sent_at[-per_hour] + HOUR

    def begin(self, key: str, now: datetime) -> WaitingNotices:
        """A message to this destination is on its way. Returns what is in it."""
        waiting = self.waiting[key]
        if waiting.since is None:
            waiting.since = now
            self.sent_at.append(now)  # also one that fails: a target that is away must not lift the limit
        return waiting.model_copy(deep=True)

    def end(self, key: str, sent: WaitingNotices) -> None:
        """The message arrived, or nobody tries any more."""
        waiting = self.waiting[key]
        waiting.notices = waiting.notices[len(sent.notices) :]
        waiting.left_out -= sent.left_out
        waiting.since = None
        if not waiting.notices and not waiting.left_out:
            del self.waiting[key]

    def next_change(self, now: datetime, per_hour: int, *, waits: bool) -> datetime | None:
        """When something is to be done next, if nothing is heard. ``waits``: something waits for room. None: never, so
        a target that is away for a day costs nothing meanwhile."""
        room_at = self.has_room_at(now, per_hour)
        times = [at + HOUR for at in self.sent_at[-1:]]
        times += [_due(notice) for notice in self.later[:1]]
        times += [room_at] if waits and room_at is not None else []
        return min(times, default=None)

    def is_quiet(self, now: datetime) -> bool:
        """True if there is nothing to do, and no message of the last hour to count."""
        return not self.waiting and not self.later and all(at + HOUR <= now for at in self.sent_at)

    def _add(self, notice: Notice) -> None:
        key = destination(notice.target, notice.address)
        held = sum(len(one.notices) for one in self.waiting.values())
        if key not in self.waiting and len(self.waiting) >= MOST_DESTINATIONS:
            return
        waiting = self.waiting.setdefault(key, WaitingNotices(target=notice.target, address=notice.address))
        if held >= MOST_WAITING and waiting.notices:
            waiting.left_out += 1
        else:
            waiting.notices.append(notice)


def _due(notice: Notice) -> datetime:
    return notice.due_at or notice.at
