"""Stands before a real server and misbehaves as a test says; told nothing, it passes all on."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import threading
from types import TracebackType

HUGE_BYTES = 64 * 1024 * 1024
WAYS = ("silence", "close", "reset", "half", "nonsense", "huge", "drip", "strange", "changed", "redirect")
"""Of any protocol. strange: a well-formed answer that makes no sense; changed: the real one with other bytes in it."""


class MisbehavingProxy:
    """`with MisbehavingProxy(port, ...) as proxy:`; `proxy.way` holds for what comes from now on, '' is good behaviour.

    strange, huge: answers of this protocol, the latter is followed by HUGE_BYTES. A change of the way ends the
    connections, as a server does that is started again. `met` counts those that met a misbehaviour, `taken`
    the most bytes that one of them took of `huge`. Owner: a thread for each connection.
    """

    def __init__(self, port: int, *, strange: tuple[bytes, ...] = (b"\x00",), huge: bytes = b"") -> None:
        self._target = port
        self._strange = itertools.cycle(strange)
        self._huge = huge
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._chance = random.Random(5)
        self._way = ""
        self.met = 0
        self.taken = 0

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def way(self) -> str:
        return self._way

    @way.setter
    def way(self, way: str) -> None:
        self._way = way
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> MisbehavingProxy:
        threading.Thread(target=self._accept, name="misbehaving proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.way = ""

    def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # a client that was gone before it was accepted, or the listener is closed
                continue
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock, self._way), daemon=True).start()

    def _serve(self, sock: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError), sock:
            self.met += bool(way)
            if way in ("", "half", "changed"):
                self._pass_on(sock, way)
            elif sock.recv(65536):
                self._misbehave(sock, way)
        self._open.discard(sock)

    def _misbehave(self, sock: socket.socket, way: str) -> None:
        if way == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif way == "nonsense":
            sock.sendall(self._chance.randbytes(500))
        elif way == "strange":
            sock.sendall(next(self._strange))
        elif way == "redirect":
            here = f"http://127.0.0.1:{self.port}/again"
            sock.sendall(f"HTTP/1.1 307 Again\r\nLocation: {here}\r\nContent-Length: 0\r\n\r\n".encode())
        elif way == "huge":
            sock.sendall(self._huge)
            for n in range(HUGE_BYTES // 65536):
                sock.sendall(b"x" * 65536)
                self.taken = max(self.taken, n * 65536)
        elif way == "drip":
            for byte in itertools.chain(self._huge, itertools.repeat(120, 600)):
                sock.sendall(bytes([byte]))
                threading.Event().wait(0.05)
        while way in ("silence", "nonsense", "strange") and sock.recv(65536):
            pass

    def _pass_on(self, sock: socket.socket, way: str) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as real:
            self._open.add(real)
            back = threading.Thread(target=self._pass_back, args=(real, sock, way), daemon=True)
            back.start()
            while data := sock.recv(65536):
                real.sendall(data)
            real.shutdown(socket.SHUT_WR)
            back.join(60)
            self._open.discard(real)

    def _pass_back(self, real: socket.socket, sock: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := real.recv(65536):
                if way == "half":
                    sock.sendall(data[: len(data) // 2])
                    break
                sock.sendall(self._changed(data) if way == "changed" else data)
            sock.shutdown(socket.SHUT_RDWR)

    def _changed(self, data: bytes) -> bytes:
        found = bytearray(data)
        for _ in range(1 + len(found) // 40):
            found[self._chance.randrange(len(found))] = self._chance.randrange(256)
        return bytes(found)
