"""Who decides, and by what.

The epoch is the fencing token: every new leader gets a higher one, and ``reserve_gang`` refuses older ones. The leader
also writes down its policy, so that admission, the order of the queue, dry runs and snapshots follow the one that is
in force, whatever configuration their own process was started with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import StaleEpoch
from gpu_platform.domain.placing.quota import Quotas
from gpu_platform.domain.plugin import PluginFault
from gpu_platform.store.database import change, insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import leader

_EPOCH = select(leader.c.epoch)
_LOCKED_EPOCH = _EPOCH.with_for_update(read=True)
_POLICY = select(leader.c.policy)
_ROUND = select(leader.c.round)
_PLUGIN_FAULTS = select(leader.c.plugin_faults)
_START_RATIOS = select(leader.c.start_ratios)
_FAULTS = TypeAdapter(list[PluginFault])


@writing
def begin_epoch(session: Session, holder: str, now: datetime, policy: Mapping[str, Any] | None = None) -> int:
    """Make ``holder`` the leader. From the commit on, no reservation of an earlier epoch succeeds.

    ``policy``: the fields of a policy file, JSON's types only.
    """
    written = json.dumps(policy or {})
    insert_new(session, leader, {"id": 1, "epoch": 0, "holder": holder, "since": now, "policy": written})
    took = update(leader).values(epoch=leader.c.epoch + 1, holder=holder, since=now, policy=written, plugin_faults="[]")
    return session.execute(took.returning(leader.c.epoch)).scalar_one()


@writing
def change_policy(session: Session, epoch: int, policy: Mapping[str, Any]) -> bool:
    """The leader of ``epoch`` writes down another policy. False: it does not lead any more."""
    return change(session, update(leader).where(leader.c.epoch == epoch).values(policy=json.dumps(policy))) == 1


@writing
def switch_off_plugins(
    session: Session, epoch: int, faults: Sequence[PluginFault], now: datetime, *, more: bool = False
) -> None:
    """The leader of ``epoch`` writes down which plugins it has switched off: these, and no others. ``more``: these and
    those from before."""
    before = _FAULTS.validate_json(session.scalar(_PLUGIN_FAULTS) or "[]")
    faults = [*before, *(one for one in faults if one not in before)] if more else faults
    written = _FAULTS.dump_json(list(faults)).decode()
    if not change(session, update(leader).where(leader.c.epoch == epoch).values(plugin_faults=written)):
        return
    for fault in faults:
        if fault not in before:
            append_event(session, "scheduler.plugin_off", "scheduler", now, data=fault.model_dump())


@reading
def plugin_faults(session: Session) -> list[PluginFault]:
    """The plugins that the leader has switched off."""
    return _FAULTS.validate_json(session.scalar(_PLUGIN_FAULTS) or "[]")


@writing
def keep_start_ratios(session: Session, epoch: int, ratios: Mapping[int, Sequence[float]]) -> bool:
    """The leader of ``epoch`` writes down how far estimated starts were off. False: it does not lead any more."""
    written = json.dumps({length: [round(one, 4) for one in values] for length, values in ratios.items()})
    return change(session, update(leader).where(leader.c.epoch == epoch).values(start_ratios=written)) == 1


@reading
def start_ratios(session: Session) -> dict[int, list[float]]:
    """How far estimated starts were off, as the last leader wrote it down; empty before it learned any."""
    return {int(length): values for length, values in json.loads(session.scalar(_START_RATIOS) or "{}").items()}


@reading
def current_policy(session: Session) -> dict[str, Any]:
    """The policy in force; empty (all defaults) before the first leader."""
    return json.loads(session.scalar(_POLICY) or "{}")


@reading
def current_quotas(session: Session) -> Quotas:
    """The quotas of the policy in force; without limits before the first leader."""
    return _quotas(session.scalar(_POLICY) or "{}")


@lru_cache(maxsize=8)
def _quotas(policy: str) -> Quotas:
    return Quotas.model_validate(json.loads(policy).get("quotas", {}))


@reading
def current_round(session: Session) -> int:
    """The newest round that a leader wrote down, at least its Unix time; 0 before the first leader."""
    return session.scalar(_ROUND) or 0


def check_epoch(session: Session, epoch: int) -> None:
    """Inside a transaction: keep other leaders away until the commit. Raises :class:`StaleEpoch` if one leads now."""
    current = session.scalar(_LOCKED_EPOCH) or 0
    if epoch != current:
        raise StaleEpoch(f"a scheduler of epoch {epoch} decided this, but epoch {current} leads now")


@reading
def current_epoch(session: Session) -> int:
    """The epoch that may decide; 0 before the first leader."""
    return session.scalar(_EPOCH) or 0
