"""The manager of steps and who asks it prove each other's key. On the host's network anybody connects."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

from gpu_platform.steps.protocol import NotTrusted, admit, connect

WRONG = ["", "0" * 64, "é", "\ud800", 7, None, [], {"a": 1}, "x" * 1000]


@pytest.mark.parametrize("mac", WRONG, ids=ascii)
def test_who_does_not_know_the_key_is_not_trusted_whatever_is_said(mac: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(json.dumps({"mac": mac, "nonce": mac, "role": "srun"}).encode() + b"\n")
        with pytest.raises(NotTrusted):
            admit(ours, "key")


@pytest.mark.parametrize("mac", WRONG, ids=ascii)
def test_who_passes_for_the_manager_is_not_trusted_whatever_is_said(mac: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(json.dumps({"nonce": mac}).encode() + b"\n")
                connection.recv(65_536)
                connection.sendall(json.dumps({"mac": mac}).encode() + b"\n")
                connection.recv(65_536)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotTrusted):
            connect("127.0.0.1", server.getsockname()[1], "key", {"role": "srun"})
        thread.join()
