"""Checks the `mqtt` section for `vedette check`: the package, the certificate, and whether the broker lets us in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from appliance.base.clock import SystemClock
from appliance.base.errors import UsageError
from appliance.config import MqttConfig
from appliance.mqtt.broker_session import ANSWER_S_MAX, CONNECT_S_MAX, BrokerSession

_POLL_S = 0.2  # a person waits for the answer


class BrokerFinding(NamedTuple):
    """About which key, how it is, and what to do."""

    about: str
    level: Literal["ok", "warning", "unreachable", "wrong"]
    text: str


def check_mqtt(mqtt: MqttConfig, *, contact: bool) -> Iterator[BrokerFinding]:
    """contact: whether the broker may be connected to; nothing is published."""
    if mqtt.password is not None and not mqtt.uses_tls and not mqtt.local:
        text = "what is published, and the password with it, can be read on the way: use mqtts://"
        yield BrokerFinding("mqtt.url", "warning", text)
    if mqtt.commands and mqtt.user is None:
        text = "whoever reaches the broker can disarm the site: give it users, and set `user` and `password`"
        yield BrokerFinding("mqtt.commands", "warning", text)
    clock = SystemClock()
    try:
        # A client id of its own: with the running appliance's it would throw that one out.
        session = BrokerSession(mqtt, "", None, clock, lambda message: None, lambda amount: None)
    except UsageError as error:
        yield BrokerFinding("mqtt", "wrong", str(error))
        return
    if not contact:
        return
    until = clock.monotonic() + CONNECT_S_MAX + ANSWER_S_MAX
    while not session.connected and not session.error and clock.monotonic() < until:
        session.run_once(_POLL_S)
    if session.connected:
        yield BrokerFinding("mqtt", "ok", f"{mqtt} lets us in")
    else:
        yield BrokerFinding("mqtt", "unreachable", f"{mqtt}: {session.error or 'no answer'}; it would be tried again")
    session.close()
