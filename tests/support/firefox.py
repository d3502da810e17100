"""A real Firefox without a driver between: W3C WebDriver BiDi over its own WebSocket (RFC 6455), as far as tests need.

Playwright speaks BiDi to a stock Firefox too, but with commands that the extended support release does not know yet.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import PATIENCE, until

# What a fresh profile would do beside the test: play nothing, ask the network, sound.
_SETTINGS = {"media.autoplay.default": 0, "media.volume_scale": "0.0", "media.gmp-manager.updateEnabled": False}
_EVENTS = ["log.entryAdded", "network.beforeRequestSent", "network.responseCompleted"]
_TEXT, _CLOSE = 0x1, 0x8
# As WebDriver writes keys that type nothing.
_KEYS = {"Shift": "\ue008", "Tab": "\ue004", "Enter": "\ue007", "ArrowRight": "\ue014", "ArrowDown": "\ue015"}


def firefox_program() -> str:
    """The Firefox of this machine; skips the test where there is none."""
    for name in (os.environ.get("VEDETTE_FIREFOX", ""), "firefox-esr", "firefox"):
        if found := name and shutil.which(name):
            return found
    pytest.skip("no Firefox here: `apt-get install firefox-esr libavcodec59`, or set VEDETTE_FIREFOX to one")


class WebSocket:
    """Text messages over one connection to a server of this machine; owned by the test that opened it."""

    def __init__(self, url: str, seconds: float) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=seconds)
        self._file = self._socket.makefile("rb")
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._socket.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        status = self._file.readline()
        assert b" 101 " in status, status
        while self._file.readline().strip():
            pass

    def send(self, text: str) -> None:
        data, mask = text.encode(), secrets.token_bytes(4)
        size = len(data)
        length = (
            bytes([0x80 | size])
            if size < 126
            else struct.pack("!BH" if size < 65536 else "!BQ", 0x80 | (126 if size < 65536 else 127), size)
        )
        self._socket.sendall(bytes([0x80 | _TEXT]) + length + mask + bytes(b ^ mask[n % 4] for n, b in enumerate(data)))

    def receive(self) -> str:
        """The next text message. Raises TimeoutError, and ConnectionError once the other side has closed."""
        message = b""
        while True:
            head = self._file.read(2)
            if len(head) < 2 or head[0] & 0x0F == _CLOSE:
                raise ConnectionError("Firefox has closed the connection")
            size = head[1] & 0x7F
            if size > 125:
                (size,) = struct.unpack("!H" if size == 126 else "!Q", self._file.read(2 if size == 126 else 8))
            content = self._file.read(size)
            if head[0] & 0x0F > _CLOSE:
                continue  # a ping or pong: nobody waits for it here
            message += content
            if head[0] & 0x80:
                return message.decode()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Firefox:
    """One headless Firefox with a profile of its own and one page. `faults`: everything that must not happen."""

    def __init__(self, program: str, profile: Path, *, seconds: float = 30.0 * PATIENCE) -> None:
        self.faults: list[str] = []
        self._sent, self._seconds = 0, seconds
        profile.mkdir()
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in _SETTINGS.items())
        (profile / "user.js").write_text("".join(lines))
        arguments = [
            "--headless",
            "--no-remote",
            "--profile",
            str(profile),
            "--remote-debugging-port",
            "0",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "HOME": str(profile)},
        )
        try:
            self._link = WebSocket(f"{self._address()}/session", seconds)
            self._command("session.new", capabilities={})
            self._command("session.subscribe", events=_EVENTS)
            self._page = self._command("browsingContext.getTree")["contexts"][0]["context"]
        except BaseException:
            self.close()
            raise

    def _address(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if b"BiDi listening on " in line:
                return line.decode().rpartition(" ")[2].strip()
        raise AssertionError(f"Firefox ended with {self._process.wait()} and never listened")

    def _command(self, method: str, **params: Any) -> Any:
        self._sent += 1
        self._link.send(json.dumps({"id": self._sent, "method": method, "params": params}))
        while True:
            message = json.loads(self._link.receive())
            if message.get("id") == self._sent:
                assert message["type"] == "success", message
                return message["result"]
            self._event(message.get("method"), message.get("params", {}))

    def _event(self, method: str | None, about: dict[str, Any]) -> None:
        if method == "log.entryAdded" and about["level"] in {"error", "warn"}:
            self.faults.append(about["text"])
        elif method == "network.responseCompleted" and about["response"]["status"] >= 400:
            self.faults.append(f"{about['response']['status']} {about['response']['url']}")
        elif method == "network.beforeRequestSent":
            url = about["request"]["url"]
            if urlsplit(url).hostname not in {"127.0.0.1", None}:
                self.faults.append(f"left the machine: {url}")

    def open(self, url: str, width: int = 1440, height: int = 900) -> None:
        """Load a page and wait for it."""
        viewport = {"width": width, "height": height}
        self._command("browsingContext.setViewport", context=self._page, viewport=viewport)
        self._command("browsingContext.navigate", context=self._page, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of what it promises, as JSON."""
        result = self._command(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})) ?? 'null')()",
            target={"context": self._page}, awaitPromise=True, userActivation=True,
        )  # fmt: skip
        assert result["type"] == "success", result["exceptionDetails"]["text"]
        return json.loads(result["result"]["value"])

    def press(self, key: str) -> None:
        """Press and release a key, or several that are named with `+` between."""
        keys = [_KEYS.get(each, each) for each in (key.split("+") if len(key) > 1 else [key])]
        actions = [{"type": "keyDown", "value": each} for each in keys]
        actions += [{"type": "keyUp", "value": each} for each in reversed(keys)]
        whole = [{"type": "key", "id": "keyboard", "actions": actions}]
        self._command("input.performActions", context=self._page, actions=whole)

    def until(self, condition: str, seconds: float = 20.0) -> None:
        """Return once the expression is true, or fail."""
        until(
            lambda: self.evaluate(condition),
            seconds,
            lambda: f"{condition}; {self.evaluate('document.body.innerText')}",
            every_s=0.05,
        )

    def close(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._link.close()
        self._process.terminate()
        self._process.wait(60)
        if self._process.stderr is not None:
            self._process.stderr.close()
