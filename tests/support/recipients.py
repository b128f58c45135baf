"""Those who get messages: a real HTTP server and a real SMTP server, which may be down for a while."""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from gpu_platform.node.system.ports import free_port

USER, PASSWORD, TOKEN = "mailer", "pAsS-w0rd-of-mail", "t0ken-0f-the-webh00k"


class Webhook:
    """Takes messages of an Apprise URL ``json://…``. While it is ``down`` it answers 503."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.down = False
        self.refused = 0
        self.answer_s = 0.0
        """How long it takes for an answer, after it took the message."""
        self.elsewhere: str | None = None
        """Where it sends those who ask (307), in place of an answer."""
        self.answers_with_a_gigabyte: str | None = None
        """``plain`` or ``gzip``: of zeros."""
        self.messages: list[dict[str, Any]] = []
        self.url = f"json://127.0.0.1:{port}/{TOKEN}"

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.messages]


@contextmanager
def webhook() -> Iterator[Webhook]:
    found = Webhook(free_port())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if found.down or self.path != f"/{TOKEN}":
                found.refused += 1
                self.send_error(503)
                return
            if found.elsewhere is not None:
                self.send_response(307)
                self.send_header("Location", found.elsewhere)
                self.end_headers()
                return
            found.messages.append(json.loads(body))
            time.sleep(found.answer_s)
            self.send_response(200)
            packing = zlib.compressobj(1, zlib.DEFLATED, 31) if found.answers_with_a_gigabyte == "gzip" else None
            if packing is not None:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            zeros = bytes(1 << 20)
            with suppress(OSError):
                for _ in range(1024 if found.answers_with_a_gigabyte else 0):
                    self.wfile.write(zeros if packing is None else packing.compress(zeros))
                self.wfile.write(b"" if packing is None else packing.flush())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", found.port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class SilentServer:
    """Takes connections, and never answers."""

    def __init__(self, listening: socket.socket) -> None:
        self.port = int(listening.getsockname()[1])
        self.asked: list[socket.socket] = []
        self._listening = listening

    def accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                self.asked.append(self._listening.accept()[0])

    def gone(self) -> int:
        """How many who asked do not wait any more."""
        return sum(_has_ended(one) for one in self.asked)

    def hang_up(self) -> None:
        for one in self.asked:
            one.close()


@contextmanager
def silent_server() -> Iterator[SilentServer]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = SilentServer(listening)
        thread = threading.Thread(target=found.accept)
        thread.start()
        try:
            yield found
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            found.hang_up()


def _has_ended(connection: socket.socket) -> bool:
    """What was asked is read first."""
    with suppress(BlockingIOError):
        while connection.recv(1 << 16, socket.MSG_DONTWAIT):
            pass
        return True
    return False


class Mailbox:
    """Takes mail for everybody who signs in."""

    def __init__(self, port: int) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        """Of each mail, as the mail server was told them: also those that no header names."""
        self.url = (
            f"mailto://{USER}:{PASSWORD}@127.0.0.1:{port}/?from=gpu@lab.example&to=team@lab.example&mode=insecure"
        )

    @property
    def subjects(self) -> list[str]:
        return [str(mail["Subject"]) for mail in self.mails]

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # aiosmtpd's
        if not session.authenticated:
            return "530 sign in first"
        content = envelope.original_content
        assert content is not None
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients.append([*envelope.rcpt_tos])
        return "250 OK"


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    port = free_port()
    found = Mailbox(port)

    def sign_in(*given: Any) -> AuthResult:
        login = given[-1]
        known = isinstance(login, LoginPassword) and login == LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=False)

    controller = Controller(found, "127.0.0.1", port, authenticator=sign_in, auth_require_tls=False)
    controller.start()
    try:
        yield found
    finally:
        controller.stop()
