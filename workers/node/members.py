"""The lists of members that a host knows.

Hosts that share a process share them: a thousand lists of a thousand hosts would fill its memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

from gpu_platform.domain.hosts.lease import LeaseAnswer, Member

KEPT_LISTS = 16
"""So many versions are shared. A host keeps its own list for as long as it needs it."""


@dataclass(frozen=True)
class MemberList:
    """The members of one version."""

    by_name: dict[str, Member]

    @cached_property
    def names(self) -> frozenset[str]:
        """Their names."""
        return frozenset(self.by_name)

    @cached_property
    def members(self) -> list[Member]:
        """All of them."""
        return list(self.by_name.values())


class MemberLists:
    """Makes lists, and gives the same object to all hosts of this process that know the same members."""

    def __init__(self) -> None:
        self._lists: OrderedDict[int, MemberList] = OrderedDict()

    def learn(self, known: MemberList | None, answer: LeaseAnswer) -> MemberList | None:
        """The list that an answer brings to a host that knows ``known``. None: nothing has changed."""
        made = _members_of(known, answer)
        if made is None:
            return None
        shared = self._lists.get(answer.members_version)
        if shared is None or shared.by_name != made:
            shared = self._lists[answer.members_version] = MemberList(made)
            if len(self._lists) > KEPT_LISTS:
                self._lists.popitem(last=False)
        return shared


def _members_of(known: MemberList | None, answer: LeaseAnswer) -> dict[str, Member] | None:
    if answer.members is not None:
        return {member.name: member for member in answer.members}
    if (change := answer.members_change) is None:
        return None
    members = {} if known is None else dict(known.by_name)
    for name in change.left:
        members.pop(name, None)
    return members | {member.name: member for member in change.joined}
