"""A notification target: an HTTP server on the loopback that takes messages, or answers as its script says."""

from __future__ import annotations

import http.server
import json
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any

HANG_S_MAX = 30.0


@dataclass(frozen=True)
class Taken:
    """A request as it came. body: its JSON. answered: with which entry of the script."""

    path: str
    headers: dict[str, str]
    raw: bytes
    answered: str | int

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Receiver:
    """`with Receiver() as phone:`; `phone.script` holds what the next requests are answered with, then it is 200.

    A number is a status; `hang` never answers, `drip` never ends its answer, `reset` breaks the connection when it has
    read the request, `redirect` points to /elsewhere.
    """

    def __init__(self, *script: str | int) -> None:
        self.script: deque[str | int] = deque(script)
        self.taken: list[Taken] = []
        self.always: str | int | None = None
        self._over = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._answer(self)

            def do_PUT(self) -> None:
                receiver._answer(self)

            def do_GET(self) -> None:
                receiver._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver")

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ok(self) -> list[Taken]:
        """What was taken."""
        return [each for each in self.taken if each.answered == 200]

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        raw = request.rfile.read(int(request.headers.get("content-length", 0)))
        entry = self.script.popleft() if self.script else self.always or 200
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.taken.append(Taken(request.path, headers, raw, entry))
        if entry == "hang":
            self._over.wait(HANG_S_MAX)
        elif entry == "reset":
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.close_connection = True
            request.connection.close()
        elif entry == "drip":
            request.send_response(200)
            request.end_headers()
            self._drip(request)
        elif entry == "redirect":
            request.send_response(302)
            request.send_header("location", f"{self.url}/elsewhere")
            request.end_headers()
        else:
            request.send_response(int(entry))
            if entry == 429:
                request.send_header("retry-after", "7")
            request.end_headers()
            request.wfile.write(b'{"said": "so"}')

    def _drip(self, request: http.server.BaseHTTPRequestHandler) -> None:
        try:
            while not self._over.wait(0.05):
                request.wfile.write(b".")
                request.wfile.flush()
        except OSError:
            pass
