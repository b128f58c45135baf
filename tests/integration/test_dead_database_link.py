"""The machine of PostgreSQL is gone and says nothing, not even that: no transaction waits for it for hours."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import make_url, text

from gpu_platform.domain.errors import Unavailable
from gpu_platform.store import Store, engines
from tests.support.lan import Lan, Machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces")


@contextmanager
def _passed_on(machine: Machine, port: int, to: int) -> Iterator[None]:
    """What comes to ``port`` of the machine goes to a port of this one."""
    with machine.here():
        listener = socket.create_server(("0.0.0.0", port))

    opened = [listener]

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                opened.append(near)
                opened.append(far := socket.create_connection(("127.0.0.1", to)))
                for pair in ((near, far), (far, near)):
                    pumps.append(threading.Thread(target=pump, args=pair))
                    pumps[-1].start()

    pumps = [threading.Thread(target=serve)]
    pumps[0].start()
    try:
        yield
    finally:
        for one in opened:
            with suppress(OSError):  # its other end is gone
                one.shutdown(socket.SHUT_RDWR)
        for pump_thread in pumps:
            pump_thread.join()
        for one in opened:
            one.close()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_statement_ends_when_the_machine_of_the_database_is_gone(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 2000}
    assert short.keys() == engines.DEAD_LINK.keys()
    monkeypatch.setattr(engines, "DEAD_LINK", short)
    lan, real = Lan(), make_url(store_url)
    machine, service = lan.machine("database"), lan.machine("service")
    assert real.port is not None
    with _passed_on(machine, 5432, real.port), service.here():
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
    lan.close()
