"""A broker that greets as nats-server does and then misbehaves as a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

GREETING = (
    b'INFO {"server_id":"S","server_name":"s","version":"2.11.0","proto":1,"headers":true,"max_payload":1048576}\r\n'
)
Misbehave = Callable[[socket.socket], None]


class ScriptedBroker:
    """Answers CONNECT and PING; `first` is called with the socket of the first connection after its handshake.

    `connections`: how many were greeted. Owner: one thread a connection.
    """

    def __init__(
        self, first: Misbehave = lambda sock: None, *, answers_pings: bool = True, greeting: bytes = GREETING
    ) -> None:
        self._first = first
        self._greeting = greeting
        self._answers = answers_pings
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.connections = 0
        threading.Thread(target=self._accept, name="scripted broker", daemon=True).start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()
        for sock in self._open:
            sock.close()

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._open.append(sock)
                self.connections += 1
                first = self._first if self.connections == 1 else lambda sock: None
                threading.Thread(target=self._serve, args=(sock, first), daemon=True).start()

    def _serve(self, sock: socket.socket, misbehave: Misbehave) -> None:
        with contextlib.suppress(OSError):
            sock.sendall(self._greeting)
            received = b""
            while b"PING\r\n" not in received:
                received += sock.recv(4096)
            sock.sendall(b"PONG\r\n")
            misbehave(sock)
            while sock.recv(4096):
                if self._answers:
                    sock.sendall(b"PONG\r\n")
