"""The address and credentials of a NATS broker: one section, the same in the site file and in the worker's file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from appliance.base.config_model import ConfigModel

BROKERS_MAX = 16  # five regions of three servers
REGION = r"^[a-z0-9-]{1,32}$"
IDENTITY_FILES: Final = ("credentials", "nkey")
TLS_FILES: Final = ("tls_ca", "tls_cert", "tls_key")


def _checked_url(url: str) -> str:
    if urlsplit(url).scheme not in {"nats", "tls", "ws", "wss"}:
        raise ValueError("must begin with nats://, tls://, ws:// or wss://")
    if not _has_host(url):
        raise ValueError("names no host, or a port that is none: write nats://hub.example:4222")
    return url


BrokerUrl = Annotated[str, Field(min_length=1, repr=False), AfterValidator(_checked_url)]


class BrokerAddress(ConfigModel):
    """One of several brokers. The servers of one region are a cluster and share their streams."""

    url: BrokerUrl
    region: Annotated[str, Field(pattern=REGION)]


class BrokerConfig(ConfigModel):
    """A broker, or several in the order of preference. Neither its repr nor its text holds a secret.

    credentials: a .creds file (JWT and seed); nkey: a file with an NKEY's seed; tls_cert and tls_key: our own side of
    mutual TLS, PEM.
    """

    url: BrokerUrl
    urls: Annotated[tuple[BrokerAddress, ...], Field(max_length=BROKERS_MAX)] = ()
    credentials: Path | None = None
    nkey: Path | None = None
    token: SecretStr | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _first_url(cls, data: Any) -> Any:
        """Take the first of `urls` where `url` is left out."""
        if isinstance(data, dict) and data.get("urls") and "url" not in data:
            first = data["urls"][0] if isinstance(data["urls"], (list, tuple)) else None
            found = first.get("url") if isinstance(first, dict) else getattr(first, "url", None)
            return {**data, "url": found} if found is not None else data
        return data

    @model_validator(mode="after")
    def _url_among_urls(self) -> BrokerConfig:
        if self.urls and self.url not in {each.url for each in self.urls}:
            raise ValueError("url is not among urls: leave url out, or write it there, too, with its region")
        return self

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
        token = self.token.get_secret_value() if self.token else None
        parts = [urlsplit(url) for url in (self.url, *(each.url for each in self.urls))]
        found = [token, *(secret for each in parts for secret in (each.username, each.password))]
        return tuple(dict.fromkeys(secret for secret in found if secret))

    def unreadable_files(self, keys: Sequence[str] = (*IDENTITY_FILES, *TLS_FILES)) -> Iterator[tuple[str, Path]]:
        """Yield the key and path of each file that is named, but is none that this user can read."""
        for key in keys:
            path: Path | None = getattr(self, key)
            if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
                yield key, path

    @property
    def addresses(self) -> tuple[BrokerAddress, ...]:
        """The brokers that may be connected to, in order; one without `urls` is in a region without a name."""
        return self.urls or (BrokerAddress.model_construct(url=self.url, region=""),)


def _has_host(url: str) -> bool:
    """Return True if a host that can be looked up, and a port where one is written, can be read from the URL."""
    try:
        parts = urlsplit(url)
        return bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False
