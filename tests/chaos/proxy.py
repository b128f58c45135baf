"""A TCP proxy whose links can be cut, slowed and made lossy, each direction by itself: ``python proxy.py``.

A process of its own, so that the tests' own work delays nothing. Commands come as JSON lines on standard input, each is
answered with one. ``up`` is from who connects to whom, ``down`` is the way back:

- ``{"add": NAME, "host": …, "port": …}`` answers the port that leads there;
- ``{"set": NAME, "up": SHAPE, "down": SHAPE}``, SHAPE ``{"cut": bool, "delay_s": s, "stall": probability}``;
- ``{"reset": NAME}`` ends the link's connections as a firewall does that forgot them.

What is sent into a cut is kept and arrives once the cut heals, as TCP sends it again. A connection that is opened
meanwhile is accepted and hears nothing: half open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from dataclasses import dataclass, field
from typing import Any

RETRANSMIT_S = (0.2, 1.0)
"""How long TCP stalls for a lost segment: its least timeout, and after a few losses in a row."""
CHUNK = 65536
IN_FLIGHT = 64


@dataclass
class Direction:
    delay_s: float = 0.0
    stall: float = 0.0
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    def shape(self, shape: dict[str, Any]) -> None:
        self.delay_s, self.stall = shape.get("delay_s", 0.0), shape.get("stall", 0.0)
        if shape.get("cut", False):
            self.open.clear()
        else:
            self.open.set()

    async def let_pass(self, sent_at: float) -> None:
        """Returns when what was sent at that time (of the loop) arrives."""
        stalled = random.uniform(*RETRANSMIT_S) if random.random() < self.stall else 0.0
        await asyncio.sleep(max(0.0, sent_at + self.delay_s + stalled - asyncio.get_running_loop().time()))
        await self.open.wait()


class Link:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.up, self.down = Direction(), Direction()
        self._connections: set[asyncio.StreamWriter] = set()

    async def listen(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        return server.sockets[0].getsockname()[1]

    def reset(self) -> None:
        for writer in list(self._connections):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            await self.up.open.wait()
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            self._connections.discard(writer)
            return
        self._connections.add(there_writer)
        try:
            await asyncio.gather(_pump(reader, there_writer, self.up), _pump(there_reader, writer, self.down))
        except OSError:
            pass
        finally:
            for end in (writer, there_writer):
                end.transport.abort()
                self._connections.discard(end)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
    loop = asyncio.get_running_loop()
    sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT)

    async def arrive() -> None:
        while True:
            sent_at, data = await sent.get()
            await direction.let_pass(sent_at)
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async def send() -> None:
        data = b"-"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:  # a reset travels on as an end
                data = b""
            await sent.put((loop.time(), data))

    await asyncio.gather(send(), arrive())


async def main() -> None:
    links: dict[str, Link] = {}
    commands = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if "add" in command:
            link = links[command["add"]] = Link(command["host"], command["port"])
            answer["port"] = await link.listen()
        elif "set" in command:
            links[command["set"]].up.shape(command["up"])
            links[command["set"]].down.shape(command["down"])
        else:
            links[command["reset"]].reset()
        print(json.dumps(answer), flush=True)
    os._exit(0)  # whatever is under way through the links


if __name__ == "__main__":
    asyncio.run(main())
