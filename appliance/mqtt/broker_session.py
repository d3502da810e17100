"""The connection to an MQTT broker: paho-mqtt, driven by the one thread that owns it.

paho-mqtt is an optional package, imported only where the site file has an `mqtt` section.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency, UsageError
from appliance.base.tcpinfo import bytes_on_wire, failed_connect_bytes, ip_version, segment_bytes_max, tcp_bytes
from appliance.base.telemetry import LogThrottle
from appliance.config import MqttConfig
from appliance.config.values import Finding
from appliance.mqtt.discovery import OFFLINE

if TYPE_CHECKING:
    from paho.mqtt.client import Client

CONNECT_S_MAX = 5.0  # lost SYNs are repeated after 1 and 3 s
ANSWER_S_MAX = 10.0  # for the broker's answer to our greeting
KEEPALIVE_S = 30  # a broker notices a lost appliance after 1.5 of it (MQTT 3.1.1, 3.1.2.10)
BACKOFF_FIRST_S, BACKOFF_LAST_S = 1.0, 20.0  # a broker that restarts is back in seconds; more often fills its log
INFLIGHT_MAX = 20  # paho's default: messages of QoS 1 without an acknowledgement
QUEUED_MAX = 200  # messages that the broker has not acknowledged; what does not fit waits with us
RECEIVED_BYTES_MAX = 16 * 1024  # of a message to us; the broker is told to send no longer one
PACKET_BYTES_MAX = 256 * 1024 * 1024  # MQTT's own limit; a broker may want less
_HEADER_BYTES_MAX = 64  # fixed header, packet id and properties of a PUBLISH without its topic
GOODBYE_S_MAX = 1.0  # the stop of the core waits for it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message of a topic that was subscribed to. retained: it is an old one that the broker kept."""

    topic: str
    body: bytes
    retained: bool


class BrokerSession:
    """One client of one broker: connects, comes back by itself, and says that it is gone when it is.

    Owner: one thread, which calls `run_once` again and again; nothing else blocks. Invariants: everything is sent with
    QoS 1; at most QUEUED_MAX messages wait for an acknowledgement, and wait on when the client is replaced, unless they
    are retained: the owner sends the present state anew. `connections` counts, so that the owner sees that the broker
    may have forgotten what it kept; `messages` counts those that were published.
    """

    def __init__(
        self,
        config: MqttConfig,
        client_id: str,
        will_topic: str | None,
        clock: Clock,
        receive: Callable[[ReceivedMessage], None],
        count_bytes: Callable[[int], None],
    ) -> None:
        """will_topic: where the broker says OFFLINE when we vanish; None: nowhere.

        Raises UsageError: the package is not installed, or the certificate cannot be read.
        """
        self._config = config
        self._will_topic = will_topic
        self._clock = clock
        self._receive = receive
        self._count_bytes = count_bytes
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_LAST_S)
        self._throttle = LogThrottle(logger, clock)
        self._unacked: dict[int, tuple[str, bytes]] = {}
        self._try_at = float("-inf")
        self._answer_by: float | None = None
        self._sent = 0
        self.connected = False
        self.connections = self.messages = 0
        self.error = ""
        self._client_id = client_id
        self._packet_bytes_max = PACKET_BYTES_MAX
        self._keeps_messages = True
        self._tls = tls_context(config.tls_ca) if config.uses_tls else None  # now, as this may still refuse to start
        self._client = self._new_client()

    def run_once(self, seconds: float) -> bool:
        """Connect when it is time to, and receive for at most `seconds`. False: there is nothing to wait for yet."""
        now = self._clock.monotonic()
        if self._client.socket() is None:
            if now < self._try_at:
                return False
            self._connect()
            return True
        if self._answer_by is not None and now > self._answer_by:
            self._lost("it did not answer our greeting")
            self._client.disconnect()
        self._exchange(seconds)
        return True

    def publish(self, topic: str, body: bytes, *, retain: bool) -> bool:
        """Publish a message; return False if there is no room for it now: try again."""
        if not self.connected:
            return False
        sent = self._client.publish(topic, body, qos=1, retain=retain and self._keeps_messages)
        if sent.rc == 0 and not retain:
            self._unacked[sent.mid] = (topic, body)
        self.messages += sent.rc == 0
        return sent.rc == 0

    def takes(self, topic: str, body: bytes) -> bool:
        """Return True if a message is as short as the broker wants them."""
        return len(topic.encode()) + len(body) + _HEADER_BYTES_MAX <= self._packet_bytes_max

    def subscribe(self, topic: str) -> None:
        """Subscribe to what others publish there, and what the broker has kept; not to what we publish ourselves."""
        from paho.mqtt.subscribeoptions import SubscribeOptions

        self._client.subscribe(topic, options=SubscribeOptions(qos=1, noLocal=True))

    def close(self) -> None:
        """Say OFFLINE and go; takes at most GOODBYE_S_MAX."""
        if self.connected and self._will_topic is not None:
            sent = self._client.publish(self._will_topic, OFFLINE.encode(), qos=1, retain=True)
            until = self._clock.monotonic() + GOODBYE_S_MAX
            while self.connected and not sent.is_published() and self._clock.monotonic() < until:
                self._exchange(0.1)
        self.connected, self._answer_by = False, None
        self._client.disconnect()

    def _exchange(self, seconds: float) -> None:
        """Receive and send. Not by paho's own loop: it selects, which fails beyond the 1024th open file."""
        connection = self._client.socket()
        if connection is None:
            return
        try:
            waiting = connection.pending() if isinstance(connection, ssl.SSLSocket) else 0
            poll = select.poll()
            poll.register(connection, select.POLLIN | (select.POLLOUT if self._client.want_write() else 0))
            events = {event for _, event in poll.poll(0 if waiting else seconds * 1000)}
            if waiting or any(event & ~select.POLLOUT for event in events):
                self._client.loop_read()
            if self._client.socket() is not None and self._client.want_write():
                self._client.loop_write()
            if self._client.socket() is not None:
                self._client.loop_misc()
        except Exception as error:  # noqa: BLE001 - what the broker sends may break paho's reader in any way
            self._lost(f"it sent what is not MQTT ({type(error).__name__})")
            connection.close()
            self._client = self._new_client()
            unacked, self._unacked = self._unacked, {}
            for topic, body in unacked.values():  # paho sends them once it is connected
                self._unacked[self._client.publish(topic, body, qos=1).mid] = (topic, body)
        self._count_sent()

    def _new_client(self) -> Client:
        try:
            from paho.mqtt.client import Client
            from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties
        except ImportError:
            raise MissingDependency("mqtt: needs the package paho-mqtt: pip install 'vedette[mqtt]'") from None
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_S_MAX
        client.max_inflight_messages_set(INFLIGHT_MAX)
        client.max_queued_messages_set(QUEUED_MAX)
        if self._config.user is not None:
            password = self._config.password
            client.username_pw_set(self._config.user, password.get_secret_value() if password else None)
        if self._tls is not None:
            client.tls_set_context(self._tls)
        if self._will_topic is not None:
            client.will_set(self._will_topic, OFFLINE, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message

        def acknowledged(_client: Client, _data: Any, packet_id: int, _reason: Any, _properties: Any) -> None:
            self._unacked.pop(packet_id, None)

        client.on_publish = acknowledged
        client.on_socket_close = self._on_socket_close
        client._sock_recv = partial(_receive_bounded, client._sock_recv)  # type: ignore[method-assign]
        self._greeting: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        self._greeting.MaximumPacketSize = RECEIVED_BYTES_MAX
        return client

    def _connect(self) -> None:
        began, config = self._clock.monotonic(), self._config
        self._sent = 0
        try:
            self._client.connect(config.host, config.port, KEEPALIVE_S, clean_start=True, properties=self._greeting)
        except (OSError, ValueError) as error:  # ValueError: a host name that no host can have
            seconds = self._clock.monotonic() - began
            answered = isinstance(error, ssl.SSLError)
            self._count_bytes(failed_connect_bytes(seconds, config.host, answered=answered).bytes)
            self._lost(_cause(error))
            return
        self._answer_by = self._clock.monotonic() + ANSWER_S_MAX

    def _on_connect(self, _client: Client, _data: Any, _flags: Any, reason: Any, properties: Any) -> None:
        self._answer_by = None
        if reason.is_failure:
            self._lost(f"it refuses us: {reason}; check `user`, `password` and that it speaks MQTT 5")
            return
        self.connected, self.error = True, ""
        self.connections += 1
        self._packet_bytes_max = getattr(properties, "MaximumPacketSize", PACKET_BYTES_MAX)
        self._keeps_messages = getattr(properties, "RetainAvailable", 1) == 1
        self._backoff.reset()
        logger.info("connected to the MQTT broker %s", self._config)

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if self.connected:
            self._lost(f"the connection ended: {reason}")

    def _on_message(self, _client: Client, _data: Any, message: Any) -> None:
        if len(message.payload) <= RECEIVED_BYTES_MAX:
            self._receive(ReceivedMessage(message.topic, message.payload, message.retain))

    def _on_socket_close(self, _client: Client, _data: Any, closing: Any) -> None:
        self._count_sent(closing)
        if self._answer_by is not None:
            self._lost("it ended the connection before it answered our greeting")

    def _lost(self, why: str) -> None:
        self.connected, self._answer_by = False, None
        self.error = why
        self._try_at = self._clock.monotonic() + self._backoff.next_s()
        self._throttle.report(f"the MQTT broker {self._config} cannot be used: {why}")

    def _count_sent(self, closing: socket.socket | None = None) -> None:
        """Bytes on the wire since the last call, as the kernel counted them."""
        connection = cast("socket.socket | None", closing or self._client.socket())
        counted = tcp_bytes(connection) if connection is not None else None
        if connection is None or counted is None:
            return
        version, segment_max = ip_version(connection), segment_bytes_max(connection)
        total = bytes_on_wire(counted, version=version, segment_max=segment_max, ended=closing is not None)
        if total is not None and total.bytes > self._sent:
            self._count_bytes(total.bytes - self._sent)
            self._sent = total.bytes


def tls_context(tls_ca: Path | None) -> ssl.SSLContext:
    """Return a context that verifies the broker by `tls_ca`, or by the system's certificates.

    Raise UsageError.
    """
    try:
        return ssl.create_default_context(cafile=tls_ca)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or "no certificate (PEM) in it"
        raise UsageError(f"mqtt.tls_ca: {tls_ca} cannot be used: {reason}") from None


def _receive_bounded(receive: Callable[[int], bytes], size: int) -> bytes:
    """For paho, which asks for the rest of a packet and gathers as much as a broker announces, up to 256 MB."""
    if size > RECEIVED_BYTES_MAX:
        raise ValueError("longer than we said that we take")
    return receive(size)


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message}): set `tls_ca`"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S_MAX:g} s"
    return getattr(error, "strerror", None) or type(error).__name__


_POLL_S = 0.2  # a person waits for the answer


def check_mqtt(mqtt: MqttConfig, *, contact: bool) -> Iterator[Finding]:
    """contact: whether the broker may be connected to; nothing is published."""
    if mqtt.password is not None and not mqtt.uses_tls and not mqtt.local:
        text = "what is published, and the password with it, can be read on the way: use mqtts://"
        yield Finding("mqtt.url", "warning", text)
    if mqtt.commands and mqtt.user is None:
        text = "whoever reaches the broker can disarm the site: give it users, and set `user` and `password`"
        yield Finding("mqtt.commands", "warning", text)
    clock = SystemClock()
    try:
        # A client id of its own: with the running appliance's it would throw that one out.
        session = BrokerSession(mqtt, "", None, clock, lambda message: None, lambda amount: None)
    except UsageError as error:
        yield Finding("mqtt", "wrong", str(error))
        return
    if not contact:
        return
    until = clock.monotonic() + CONNECT_S_MAX + ANSWER_S_MAX
    while not session.connected and not session.error and clock.monotonic() < until:
        session.run_once(_POLL_S)
    if session.connected:
        yield Finding("mqtt", "ok", f"{mqtt} lets us in")
    else:
        yield Finding("mqtt", "unreachable", f"{mqtt}: {session.error or 'no answer'}; it would be tried again")
    session.close()
