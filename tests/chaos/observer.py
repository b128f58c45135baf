"""Writes down when ranks are gone, as the kernel tells it: ``python observer.py DIRECTORY``.

Every rank of ``rank.py`` connects and stays connected. The end of the connection is the end of the last process of
that rank, however it ended: SIGKILL, a power cut of its host, its own exit. A process of its own, so that nothing
that a test does can delay it; it ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from rank import mark


def main(directory: str) -> None:
    with contextlib.suppress(OSError):  # only root may be more urgent than others
        os.nice(-10)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{directory}/observer")
    listener.listen(512)
    watched: dict[socket.socket, dict[str, object]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if message := connection.recv(4096):
                    watched[connection] = json.loads(message)
                    continue
                if connection in watched:
                    mark(directory, {**watched.pop(connection), "mark": "gone"})
                selector.unregister(connection)
                connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
