"""A registry on loopback: what the OCI distribution specification 1.1 asks of one for pull and push, with a token."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.servers.file_server import served


@dataclass
class Registry:
    """blobs: digest to content. manifests: tag to content. token: what pulls must bring; "": none is asked for.
    cut_after: for each of the next blobs asked for, after how many bytes the connection breaks."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    token: str = ""
    sent: int = 0
    host: str = ""


@contextmanager
def oci_registry() -> Iterator[Registry]:
    state = Registry()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/token":
                self.answer(200, json.dumps({"token": state.token}).encode())
                return
            if state.token and self.headers.get("Authorization") != f"Bearer {state.token}":
                challenge = f'Bearer realm="http://{state.host}/token",service="test",scope="repository:models:pull"'
                self.answer(401, WWW_Authenticate=challenge)
                return
            if found := re.fullmatch(r"/v2/models/manifests/([\w.+-]+)", url.path):
                content = state.manifests.get(found[1])
                self.answer(404 if content is None else 200, content or b"")
                return
            found = re.fullmatch(r"/v2/models/blobs/(sha256:[0-9a-f]{64})", url.path)
            content = state.blobs.get(found[1]) if found else None
            if content is None:
                self.answer(404)
                return
            asked = self.headers.get("Range", "")
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            if start and start >= len(content):
                self.answer(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if self.command == "HEAD":
                return
            cut = state.cut_after.pop(0) if state.cut_after else len(content)
            state.sent += len(content[start : start + cut])
            self.wfile.write(content[start : start + cut])
            self.close_connection = True

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.answer(202, Location="/v2/models/blobs/uploads/one?state=x")

        def do_PUT(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if found := re.fullmatch(r"/v2/models/manifests/([\w.+-]+)", url.path):
                layers = json.loads(body)["layers"]
                missing = [each for each in layers if each["digest"] not in state.blobs]
                if not missing:
                    state.manifests[found[1]] = body
                self.answer(404 if missing else 201)
                return
            digest = parse_qs(url.query)["digest"][0]
            right = digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
            if right:
                state.blobs[digest] = body
            self.answer(201 if right else 400)

        def log_message(self, *_: object) -> None: ...

    with served(Handler) as port:
        state.host = f"127.0.0.1:{port}"
        yield state
