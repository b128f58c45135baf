"""``gpu-platform keys remove`` asks: who still needs this key? It reads Temporal and the database; the key itself is
not used.

Every payload says in clear which key sealed it, and so does every secret.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import make_url
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from gpu_platform.domain.errors import PlatformError, Unavailable
from gpu_platform.settings import Settings
from gpu_platform.settings.reading import read_settings
from gpu_platform.store import Store
from gpu_platform.store.access import secrets
from gpu_platform.temporal.tls import tls_of

MOST_SHOWN = 5
PATIENCE_S = 10.0
_KEY_ID = b"encryption-key-id"


async def open_workflows(client: Client, key_id: str, most: int = MOST_SHOWN) -> list[str]:
    """At most so many workflows that go on and have a payload that the key sealed, for people."""
    found: list[str] = []
    # All of them: a host that did not get the newer key yet seals with the older one in new workflows, too.
    async for one in client.list_workflows('ExecutionStatus = "Running"'):
        history = client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history_events()
        if is_sealed_with(key_id, [event async for event in history]):
            found.append(f"{one.workflow_type} {one.id}, which runs since {one.start_time:%Y-%m-%d %H:%M} UTC")
            if len(found) == most:
                break
    return found


def is_sealed_with(key_id: str, events: Iterable[HistoryEvent]) -> bool:
    """True if one of the events has a payload that the key sealed."""
    # An entry of the metadata on the wire: its name, then tag and length of its value. Parsed, an event has its
    # payloads in some dozen places.
    wanted = b"%b\x12%c%b" % (_KEY_ID, len(key_id), key_id.encode())
    return any(wanted in event.SerializeToString() for event in events)


def sealed_secrets(settings: Settings, key_id: str, most: int = MOST_SHOWN) -> list[str]:
    """At most so many secrets that the key seals, for people. Raises :class:`Unavailable` without the database.

    The service seals them with the newest key, within a minute of its first use.
    """
    url = make_url(settings.store_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return []  # nothing of the platform ran here yet
    store = Store(settings.store_url)
    try:
        found = [one for one in secrets.list_secrets(store, None) if one.key_id == key_id]
    finally:
        store.close()
    return [f"the secret {one.name} of namespace {one.namespace}" for one in found[:most]]


async def uses(settings: Settings, key_id: str) -> list[str]:
    """What still needs the key, for people. Raises :class:`Unavailable` if that cannot be found out."""
    temporal = settings.temporal
    sealed = await asyncio.to_thread(sealed_secrets, settings, key_id)
    try:
        async with asyncio.timeout(PATIENCE_S):
            client = await Client.connect(temporal.address, namespace=temporal.namespace, tls=tls_of(temporal))
        return [*sealed, *await open_workflows(client, key_id)]
    except (RuntimeError, TimeoutError, OSError, RPCError) as error:
        raise Unavailable(f"Temporal at {temporal.address} does not say what needs the key: {error}") from error


def main(arguments: list[str]) -> int:
    """Print what needs the key, a line each. ``arguments``: its id."""
    try:
        for line in asyncio.run(uses(read_settings(), arguments[0])):
            print(line)
    except PlatformError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Temporal's client has threads that still connect: at an ordinary end they crash the process.
    os._exit(code)
