"""Where a web program is served, as its settings say, and the facts of its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ServedAddress(Protocol):
    """The settings of host and certificate. The dashboard's section of the site file is one."""

    @property
    def host(self) -> str:
        """Name or address to listen on; `0.0.0.0` and `::` are every interface."""

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """Names of this machine that browsers may use."""

    @property
    def speaks_https(self) -> bool: ...

    @property
    def certificate(self) -> Path | None: ...

    @property
    def certificate_key(self) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The facts of a certificate that a person compares or must know.

    fingerprint: SHA-256 as browsers show it. own: made by this appliance.
    """

    fingerprint: str
    names: tuple[str, ...]
    expires_t: float
    self_signed: bool
    own: bool
