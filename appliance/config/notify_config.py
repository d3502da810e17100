"""The section `notify`: webhook, ntfy, apprise and push targets, and of what each is told."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from appliance.base.config_model import ConfigModel
from appliance.config.values import Schedule, Seconds, check_port, is_public
from appliance.types import HealthKind, Severity

TargetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
SIGNING_PREFIX = "whsec_"
# Of Chrome, Edge and Android; Firefox; Windows; Safari.
PUSH_SERVICES = (
    "fcm.googleapis.com", "*.push.services.mozilla.com", "*.notify.windows.com", "*.push.apple.com",
)  # fmt: skip


def _one_line(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or not text.isascii() or not text.isprintable():
        raise ValueError("must be one line of plain characters")
    return value


HeaderValue = Annotated[SecretStr, AfterValidator(_one_line)]


class TargetBase(ConfigModel):
    """The settings that all kinds of targets have in common.

    Attributes:
        severities, cameras, rules: it is notified of alerts with one of these; no camera or rule named: of all.
        health: it is notified of these faults as well.
        schedule: only of what happens at these times.
        quiet_hours: nothing is sent at these times, but for alerts with a severity of `urgent`.
        picture: messages about alerts carry their still, where privacy allows.
        repeat_s: the same rules of a camera are not repeated for so long.
        hold_s: how long to wait for the cloud's verdict.
        local: the target is on the site, so that a message to it does not leave.
        expire_hours: after which a message that could not be sent is given up.
    """

    enabled: bool = True
    severities: Annotated[tuple[Severity, ...], Field(min_length=1)] = ("warning", "alert")
    cameras: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    health: tuple[HealthKind, ...] = ("overloaded", "disk", "unrecorded", "model")
    schedule: Schedule | None = None
    quiet_hours: Schedule | None = None
    urgent: tuple[Severity, ...] = ()
    picture: bool = False
    repeat_s: Seconds = 0.0
    hold_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    local: bool = False
    timeout_s: Annotated[float, Field(ge=0.5, le=60)] = 10.0
    expire_hours: Annotated[float, Field(gt=0, le=24 * 7)] = 12.0


class HttpTarget(TargetBase):
    """A target that is reached by our own HTTP requests. tls_ca: a CA bundle (PEM) of the owner's."""

    url: Annotated[str, Field(min_length=8, max_length=2000, repr=False)]
    tls_ca: Path | None = None

    @field_validator("url")
    @classmethod
    def _web_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must begin with http:// or https:// and name a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("takes no user or password: set `authorization` or `token` instead")
        if parts.fragment:
            raise ValueError("a part after # is never sent: leave it out")
        check_port(parts)
        return url

    @model_validator(mode="after")
    def _really_local(self) -> HttpTarget:
        if self.local and is_public(self.host):
            raise ValueError(f"local: {self.host} is not an address of a site's own network")
        return self

    @property
    def host(self) -> str:
        """For people: the rest of the address may be a secret."""
        return urlsplit(self.url).hostname or ""


class WebhookTarget(HttpTarget):
    """A JSON document is posted there. secret: signs it (Standard Webhooks)."""

    kind: Literal["webhook"]
    secret: SecretStr | None = None
    authorization: HeaderValue | None = None

    @field_validator("secret")
    @classmethod
    def _usable(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            signing_key(secret)
        return secret


class NtfyTarget(HttpTarget):
    """A push service that speaks ntfy's HTTP API; url: of the server, without the topic."""

    kind: Literal["ntfy"]
    topic: Annotated[str, Field(pattern=r"^[-_A-Za-z0-9]{1,64}$", repr=False)]
    token: HeaderValue | None = None


class AppriseTarget(TargetBase):
    """Any service that apprise can reach; url: apprise's address of it, all of which is a secret."""

    kind: Literal["apprise"]
    url: SecretStr

    @field_validator("url")
    @classmethod
    def _has_scheme(cls, url: SecretStr) -> SecretStr:
        if not re.match(r"[a-z][a-z0-9]*://.", url.get_secret_value(), re.IGNORECASE):
            raise ValueError("must begin with the name of an apprise service, such as discord:// or mailtos://")
        return url

    @field_validator("local")
    @classmethod
    def _never_local(cls, local: bool) -> bool:
        if local:
            raise ValueError("an apprise address may lead anywhere: use kind webhook or ntfy for a target on the site")
        return local

    @property
    def scheme(self) -> str:
        return self.url.get_secret_value().partition("://")[0].lower()

    @property
    def host(self) -> str:
        """For people: the service alone, as the host of such an address may be a token."""
        return f"apprise {self.scheme}"


class PushTarget(TargetBase):
    """Browsers that subscribe on the dashboard, by web push.

    services: hosts of push services; `*.` stands for what is before it; a port other than 443 is named. contact: for
    them, https: or mailto:; None: the dashboard's public_url. tls_ca: a CA bundle (PEM), for a service of your own.
    """

    kind: Literal["push"]
    services: Annotated[tuple[str, ...], Field(max_length=16)] = PUSH_SERVICES
    contact: Annotated[str, Field(pattern=r"^(https://|mailto:)[^\s]+$", max_length=200)] | None = None
    tls_ca: Path | None = None

    @field_validator("local", "picture")
    @classmethod
    def _through_others(cls, wanted: bool) -> bool:
        if wanted:
            raise ValueError("a push message goes through the browser's maker, and has no room for a picture")
        return wanted

    @property
    def host(self) -> str:
        """For people."""
        return "browsers"

    def check_endpoint(self, endpoint: str) -> None:
        """Raise ValueError for an address that is no known push service: a browser may name any."""
        try:
            parts = urlsplit(endpoint)
            port = parts.port or 443
        except ValueError:
            raise ValueError("that is no address of a push service") from None
        host = (parts.hostname or "").rstrip(".").lower()
        named = host if port == 443 else f"{host}:{port}"
        known = any(named == each or (each.startswith("*.") and named.endswith(each[1:])) for each in self.services)
        if parts.scheme != "https" or parts.username is not None or parts.password is not None or not known:
            raise ValueError(f"{host or 'that'} is no push service that `services` names")


Target = Annotated[WebhookTarget | NtfyTarget | AppriseTarget | PushTarget, Field(discriminator="kind")]


def signing_key(secret: SecretStr) -> bytes:
    """Return the bytes that sign: for `whsec_…` the bytes behind its base64, for anything else the text itself."""
    text = secret.get_secret_value()
    try:
        encoded = text.startswith(SIGNING_PREFIX)
        key = base64.b64decode(text.removeprefix(SIGNING_PREFIX), validate=True) if encoded else text.encode()
    except binascii.Error:
        raise ValueError("what stands after whsec_ is not base64") from None
    if len(key) < 8:
        raise ValueError("is too short to sign with: 8 characters at least, or after whsec_ 8 bytes in base64")
    return key
