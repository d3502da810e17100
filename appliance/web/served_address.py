"""Where a web program is served, as its settings say."""

from __future__ import annotations

from collections.abc import Sequence
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
