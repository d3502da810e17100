"""A real MQTT broker for tests: mosquitto on a port of its own, that may be killed, and a client that remembers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties

from tests.support.ports import quiet_port
from tests.support.waiting import until


def find_mosquitto() -> Path | None:
    """Debian puts it where only root looks."""
    found = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


class Mosquitto:
    """One broker process; its port stays the same over `kill()` and `start()`. What it keeps is lost with it."""

    def __init__(self, folder: Path, *, users: dict[str, str] | None = None, extra: str = "") -> None:
        self._folder = folder
        self._users = users or {}
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self.port = quiet_port()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> Mosquitto:
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {'false' if self._users else 'true'}",
            self._extra,
        ]
        if os.geteuid() == 0:
            lines.append("user root")
        if self._users:
            passwords = self._folder / "passwords"
            passwords.touch(mode=0o600)
            for name, password in self._users.items():
                subprocess.run(["mosquitto_passwd", "-b", passwords, name, password], check=True, capture_output=True)
            lines.append(f"password_file {passwords}")
        config = self._folder / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        program = find_mosquitto()
        assert program is not None
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen([program, "-c", config], stdout=log, stderr=log)
        until(self._listens, what="mosquitto listens")
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "mosquitto.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Listener:
    """Home automation in small: hears everything. kept: the last body of each topic; heard: all, in order."""

    def __init__(
        self, broker: Mosquitto, *, user: str | None = None, password: str | None = None, tls_ca: Path | None = None
    ) -> None:
        self.kept: dict[str, bytes] = {}
        self.heard: list[tuple[str, bytes, bool]] = []
        self._ready = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        if user is not None:
            self._client.username_pw_set(user, password)
        if tls_ca is not None:
            self._client.tls_set_context(ssl.create_default_context(cafile=tls_ca))
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()
        assert self._ready.wait(40)

    def publish(self, topic: str, body: bytes, *, retain: bool = False, properties: Properties | None = None) -> None:
        self._client.publish(topic, body, qos=1, retain=retain, properties=properties).wait_for_publish(40)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, *_: Any) -> None:
        self._client.subscribe("#", qos=1)

    def _on_message(self, _client: Client, _data: Any, message: Any) -> None:
        self.heard.append((message.topic, message.payload, message.retain))
        self.kept[message.topic] = message.payload
