"""The machine of PostgreSQL is gone and says nothing, not even that: no transaction waits for it for hours."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time

import pytest
from sqlalchemy import make_url, text

from gpu_platform.domain.errors import Unavailable
from gpu_platform.store import Store, engines
from tests.support.lan import Lan
from tests.support.relay import Relay

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces")


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_a_statement_ends_when_the_machine_of_the_database_is_gone(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 2000}
    assert short.keys() == engines.DEAD_LINK.keys()
    monkeypatch.setattr(engines, "DEAD_LINK", short)
    lan, real = Lan(), make_url(store_url)
    machine, service = lan.machine("database"), lan.machine("service")
    with machine.here():
        listener = socket.create_server(("0.0.0.0", 5432))

    def ask() -> None:
        with service.here():
            store = Store(real.set(host="10.1.0.1", port=5432).render_as_string(hide_password=False))
            with store.read() as session:
                assert session.scalar(text("SELECT 1")) == 1
            gone = threading.Timer(0.5, machine.run, ("ip", "link", "set", "eth0", "down"))
            gone.start()
            began = time.monotonic()
            with pytest.raises(Unavailable), store.read() as session:
                session.execute(text("SELECT pg_sleep(40)"))
            assert time.monotonic() - began < 30
            gone.join()
            store.close()

    async with Relay(f"127.0.0.1:{real.port}", listener=listener).serving():
        await asyncio.to_thread(ask)
    lan.close()
