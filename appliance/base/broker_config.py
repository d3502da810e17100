"""The address and credentials of a NATS broker: one section, the same in the site file and in the worker's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from appliance.base.config_model import ConfigModel


class BrokerConfig(ConfigModel):
    """A broker. Neither its repr nor its text holds a secret.

    credentials: a .creds file (JWT and seed); nkey: a file with an NKEY's seed; tls_cert and tls_key: our own side of
    mutual TLS, PEM.
    """

    url: Annotated[str, Field(min_length=1, repr=False)]
    credentials: Path | None = None
    nkey: Path | None = None
    token: SecretStr | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @field_validator("url")
    @classmethod
    def _scheme(cls, url: str) -> str:
        if urlsplit(url).scheme not in {"nats", "tls", "ws", "wss"}:
            raise ValueError("must begin with nats://, tls://, ws:// or wss://")
        if not _has_host(url):
            raise ValueError("names no host, or a port that is none: write nats://hub.example:4222")
        return url

    @model_validator(mode="after")
    def _one_identity(self) -> BrokerConfig:
        given = [name for name in ("credentials", "nkey", "token") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are set: a broker takes one of them")
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key is set without tls_cert")
        return self

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port or 4222}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never stand in a log: token, user and password."""
        parts = urlsplit(self.url)
        token = self.token.get_secret_value() if self.token else None
        return tuple(secret for secret in (token, parts.username, parts.password) if secret)


def _has_host(url: str) -> bool:
    """Return True if a host, and a port where one is written, can be read from the URL."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
