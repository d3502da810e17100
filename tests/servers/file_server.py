"""An HTTP server on loopback that gives out files, with ranges, and misbehaves to order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """files: path to content. cut_after: for each of the next requests, after how many bytes the connection breaks.
    ranges: whether Range is understood. declared: what Content-Length says instead of the truth."""

    files: dict[str, bytes]
    cut_after: list[int] = field(default_factory=list)
    ranges: bool = True
    declared: int | None = None
    status: int = 200
    requests: list[tuple[str, str]] = field(default_factory=list)  # path, Range
    url: str = ""


@contextmanager
def file_server(files: dict[str, bytes]) -> Iterator[FileServer]:
    state = FileServer(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            state.requests.append((self.path, asked))
            content = state.files.get(self.path.lstrip("/"))
            if content is None or state.status != 200:
                self.send_error(404 if content is None else state.status)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.ranges else 0
            if start >= len(content) > 0 and start:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            body = content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(body) if state.declared is None else state.declared))
            self.end_headers()
            cut = state.cut_after.pop(0) if state.cut_after else len(body)
            self.wfile.write(body[:cut])
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with served(Handler) as port:
        state.url = f"http://127.0.0.1:{port}"
        yield state


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve with `handler` on loopback, in a thread; yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
