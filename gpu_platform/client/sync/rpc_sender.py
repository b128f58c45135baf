# Generated from aio/rpc_sender.py (make client): do not edit, change that one.
"""Sends the requests of a client over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from gpu_platform.client.answer import Answer, ServerSentEvent
from gpu_platform.client.calls import Call
from gpu_platform.client.connection import STREAM_TIMEOUT_S, Connection
from gpu_platform.rpc.asking import END, RpcCall, asked_of, event_of, failed, last_event
from gpu_platform.rpc.channels import address_of, credentials_of, grpc_port, options_for
from gpu_platform.rpc.heads import begins_sync


class RpcSender:
    """Keeps one connection to each service. Raises :class:`InvalidRequest` if the environment names a wrong port."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._port = grpc_port()
        self._channels: dict[str, grpc.Channel] = {}
        self._opening = threading.Lock()

    def send(self, url: str, call: Call, token: str | None, tries: int = 0) -> Answer:
        """Send a request to the service at ``url``, after so many ``tries`` at others. Raises :class:`NoAnswer`."""
        asked = asked_of(call, self._connection.signed(self._connection.headers(call), token))
        if isinstance(asked, Answer):
            return asked
        timeout_s = self._connection.read_timeout_s(call, tries)
        if asked.streams:
            found = self._begun(url, asked, timeout_s)
            return found if isinstance(found, Answer) else found.whole(asked)
        try:
            ask = asked.on(self._channel(url))
            return asked.answer([ask(asked.message, metadata=asked.metadata, timeout=timeout_s)])
        except grpc.RpcError as error:
            return failed(error, address_of(url, self._port))

    def open(self, url: str, call: Call, token: str | None, last_id: str) -> RpcStream | Answer:
        """Ask for a stream of events, those after the event with the id ``last_id``. An answer that is an error comes
        complete. Raises :class:`NoAnswer`."""
        asked = asked_of(call, self._connection.signed(self._connection.stream_headers(last_id), token))
        return asked if isinstance(asked, Answer) else self._begun(url, asked, STREAM_TIMEOUT_S)

    def close(self) -> None:
        """Close all connections."""
        while self._channels:
            self._channels.popitem()[1].close()

    def _begun(self, url: str, asked: RpcCall, timeout_s: float) -> RpcStream | Answer:
        address = address_of(url, self._port)
        call: Any = asked.on(self._channel(url))(asked.message, metadata=asked.metadata)
        stream = RpcStream(call, address)
        try:
            if begins_sync(call, timeout_s):
                return stream
            for _ in call:
                pass
        except grpc.RpcError as error:
            return failed(error, address)
        except BaseException:
            stream.close()
            raise
        return stream

    def _channel(self, url: str) -> grpc.Channel:
        with self._opening:
            if (known := self._channels.get(url)) is not None:
                return known
            address, options = address_of(url, self._port), options_for(url)
            if url.startswith("https:"):
                made = grpc.secure_channel(address, credentials_of(self._connection.trusted()), options)
            else:
                made = grpc.insecure_channel(address, options)
            self._channels[url] = made
            return made


class RpcStream:
    """The events of an answer, as they come."""

    status = 200

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    def events(self) -> Iterator[ServerSentEvent]:
        """The events. Raises :class:`NoAnswer` when the connection breaks."""
        try:
            for message in self._call:
                yield event_of(message)
        except grpc.RpcError as error:
            if (event := last_event(error, self._address)) is not None:
                yield event
        else:
            yield END

    def whole(self, asked: RpcCall) -> Answer:
        """All of it as one answer: a text that comes in pieces. Raises :class:`NoAnswer`."""
        try:
            return asked.answer(list(self._call))
        except grpc.RpcError as error:
            return failed(error, self._address)
        finally:
            self.close()

    def close(self) -> None:
        """End it, unless it has ended: the service stops sending."""
        self._call.cancel()
