"""The section `mqtt`: the broker at which home automation listens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from appliance.base.config_model import ConfigModel
from appliance.config.values import check_port, is_public

PORT, TLS_PORT = 1883, 8883  # IANA: mqtt and secure-mqtt
_TOPIC_CHARS_MAX = 128  # leaves room for camera and zone below the 65535 bytes of MQTT


class MqttConfig(ConfigModel):
    """A broker. Neither its repr nor its text holds a secret.

    client_id, topic_prefix: None: `vedette-<site>` and `vedette/<site>`. local: the broker is on the site, so that what
    it gets does not leave. pictures: it gets the still of the last alert as well.
    commands: it may choose the profile of the site and pause cameras.
    """

    enabled: bool = True
    url: Annotated[str, Field(min_length=8, max_length=500, repr=False)]
    user: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    password: SecretStr | None = None
    client_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")] | None = None
    topic_prefix: str | None = None
    discovery_prefix: str = "homeassistant"
    tls_ca: Path | None = None
    local: bool = False
    pictures: bool = False
    commands: bool = False

    @field_validator("url")
    @classmethod
    def _broker_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname:
            raise ValueError("must begin with mqtt:// or mqtts:// and name a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("takes no user or password: set `user` and `password` instead")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("ends with the host and its port: topics stand in `topic_prefix`")
        check_port(parts)
        return url

    @field_validator("topic_prefix", "discovery_prefix")
    @classmethod
    def _topic(cls, topic: str | None) -> str | None:
        if topic is None:
            return None
        parts = topic.split("/")
        if not all(parts) or topic.startswith("$") or set("+# ") & set(topic) or not topic.isprintable():
            raise ValueError("is words with / between them, without + # $ and spaces")
        if len(topic) > _TOPIC_CHARS_MAX:
            raise ValueError(f"is longer than {_TOPIC_CHARS_MAX} characters")
        return topic

    @model_validator(mode="after")
    def _whole(self) -> MqttConfig:
        if self.password is not None and self.user is None:
            raise ValueError("password is set without user")
        if self.tls_ca is not None and not self.uses_tls:
            raise ValueError("tls_ca is set, but the url begins with mqtt://: write mqtts://")
        if self.local and is_public(self.host):
            raise ValueError(f"local: {self.host} is not an address of a site's own network")
        return self

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def uses_tls(self) -> bool:
        return urlsplit(self.url).scheme == "mqtts"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (TLS_PORT if self.uses_tls else PORT)
