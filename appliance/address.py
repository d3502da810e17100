"""Where a NATS server is and how to prove who we are: one section, the same in the site file and the worker file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from appliance.yamlfile import Section


class Address(Section):
    """A broker. Neither its repr nor its text holds a secret."""

    url: Annotated[str, Field(min_length=1, repr=False)]
    credentials: Path | None = None
    token: SecretStr | None = None
    tls_ca: Path | None = None

    @field_validator("url")
    @classmethod
    def _scheme(cls, url: str) -> str:
        if urlsplit(url).scheme not in {"nats", "tls", "ws", "wss"}:
            raise ValueError("must begin with nats://, tls://, ws:// or wss://")
        return url

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port or 4222}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never stand in a log: token, user and password."""
        parts = urlsplit(self.url)
        token = self.token.get_secret_value() if self.token else None
        return tuple(secret for secret in (token, parts.username, parts.password) if secret)
