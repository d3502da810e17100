"""The section `dashboard`: where it is served, to whom, and behind which proxy."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from appliance.base.config_model import ConfigModel

TOKEN_LENGTH_MIN = 12  # 12 random letters and digits have 71 bits


class DashboardConfig(ConfigModel):
    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    token: SecretStr | None = None
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    user_header: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9-]{0,63})?$")] = ""
    public_url: Annotated[str, Field(pattern=r"^(https?://[^\s?#@]+)?$")] = ""
    protocol: Literal["auto", "https", "http"] = "auto"
    second_factor: tuple[Literal["viewer", "reviewer", "admin"], ...] = ()
    certificate: Path | None = None
    certificate_key: Path | None = None
    analyze_per_minute: Annotated[int, Field(ge=0, le=6000)] = 30

    @model_validator(mode="after")
    def _pair(self) -> DashboardConfig:
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate and certificate_key belong together: name both PEM files, or neither")
        if self.certificate is not None and self.protocol == "http":
            raise ValueError("a certificate is for https: leave protocol out, or the certificate")
        return self

    @model_validator(mode="after")
    def _named_by_a_proxy(self) -> DashboardConfig:
        if self.user_header and not self.trusted_proxies:
            raise ValueError("user_header is believed of a proxy alone: name its address in trusted_proxies")
        if self.user_header.lower() in {"authorization", "cookie", "host", "origin", "forwarded", "x-forwarded-for"}:
            raise ValueError(f"user_header {self.user_header} is taken: let the proxy name the user in one of its own")
        return self

    @property
    def is_on_loopback(self) -> bool:
        """True if it can be reached from this machine alone."""
        return self.host in {"127.0.0.1", "localhost", "::1"}

    @property
    def speaks_https(self) -> bool:
        """True with `auto` if it has a certificate, or serves others than this machine without a proxy before it."""
        if self.protocol != "auto":
            return self.protocol == "https"
        return self.certificate is not None or not (self.is_on_loopback or self.trusted_proxies)

    @field_validator("token")
    @classmethod
    def _hard_to_guess(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < TOKEN_LENGTH_MIN:
            raise ValueError(
                f"a token has at least {TOKEN_LENGTH_MIN} characters: take what `openssl rand -hex 16` prints, "
                "and sign in with it once more"
            )
        return token

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for each in proxies:
            try:
                ipaddress.ip_network(each, strict=False)
            except ValueError:
                raise ValueError(f"`{each}` is no address or network such as 127.0.0.1 or 172.18.0.0/16") from None
        return proxies

    @property
    def open_to_all(self) -> str:
        """Why it may not be served while there are no users, with the remedy; '': it may."""
        if self.is_on_loopback or self.token is not None:
            return ""
        return (
            f"dashboard.host {self.host} is open to the network, and nobody is known who may sign in: add a user "
            "(vedette users add NAME --role admin --config FILE), set dashboard.token (for example ${VEDETTE_TOKEN}), "
            "or keep host 127.0.0.1 and use a tunnel"
        )
