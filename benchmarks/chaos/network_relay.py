"""A TCP relay on loopback between a site and its broker that can be cut."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

BUFFER = 65536


class NetworkRelay:
    """Relay of connections to `port`.

    `cut()` breaks all of them and takes no new ones, `silent()` lets them hang (as a dead router does), `mend()` ends
    both. Owner: one thread owns it.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._peer: dict[socket.socket, socket.socket] = {}
        self._state = "whole"
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        self._state = "cut"

    def silent(self) -> None:
        self._state = "silent"

    def mend(self) -> None:
        self._state = "whole"

    def close(self) -> None:
        self._stop = True
        self._thread.join(5)
        for sock in [*self._peer, self._listener]:
            sock.close()

    def _run(self) -> None:
        while not self._stop:
            if self._state == "cut":
                for sock in list(self._peer):
                    self._drop(sock)
            for key, _ in self._selector.select(0.02):
                assert isinstance(key.fileobj, socket.socket)
                sock = key.fileobj
                if sock is self._listener:
                    self._accept()
                elif self._state == "whole" and sock in self._peer:
                    self._relay(sock)
            if self._state == "silent":
                threading.Event().wait(0.02)  # unread data in the sockets keeps the selector awake

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._state != "whole":
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._port), 2)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            one.settimeout(5)
            self._peer[one] = other
            self._selector.register(one, selectors.EVENT_READ, None)

    def _relay(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(BUFFER)
            if data:
                self._peer[sock].sendall(data)
                return
        except OSError:
            pass
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        other = self._peer.pop(sock, None)
        for each in (sock, other):
            if each is not None:
                self._peer.pop(each, None)
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()
