"""Value types that several sections of the site file share: shares, seconds, amounts, schedules."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Collection
from typing import Annotated, Literal, NamedTuple
from urllib.parse import SplitResult

from pydantic import AfterValidator, Field, field_validator

from appliance.base.config_model import ConfigModel

Share = Annotated[float, Field(ge=0, le=1)]
SharePoint = tuple[Share, Share]
Seconds = Annotated[float, Field(ge=0, le=86400)]
Amount = Annotated[float, Field(ge=0)]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ID_CHARS_MAX = 32  # of a camera or profile; it stands in topics, file names and metrics
_LETTERS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "æ": "ae", "ø": "oe", "å": "aa", "ł": "l"})
_SPAN = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)-(([01]\d|2[0-3]):([0-5]\d)|24:00)$")


def _one_line(title: str) -> str:
    if not title.isprintable() or title != title.strip():
        raise ValueError("is one line of printable characters, without blanks around it")
    return unicodedata.normalize("NFC", title)


Title = Annotated[str, Field(max_length=64), AfterValidator(_one_line)]
"""A name for people, any text; '': the id is shown."""


def is_public(host: str) -> bool:
    """Return True for an address beyond a site's own networks; False for a name."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def check_port(address: SplitResult) -> None:
    """Raise ValueError for an address with a port that is none."""
    try:
        port = address.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("the port is a number from 1 to 65535")


def id_of(title: str, taken: Collection[str] = (), otherwise: str = "camera") -> str:
    """Return an id made from a name for people: `Café Straßenecke` becomes `cafe-strassenecke`.

    taken: ids that it may not be. otherwise: the id of a name without a Latin letter or a digit.
    """
    plain = unicodedata.normalize("NFKD", title.lower().translate(_LETTERS))
    kept = re.sub(r"[^a-z0-9]+", "-", "".join(each for each in plain if not unicodedata.combining(each)))
    stem = kept.strip("-")[:ID_CHARS_MAX].rstrip("-") or otherwise
    found, n = stem, 1
    while found in taken:
        n += 1
        found = f"{stem[: ID_CHARS_MAX - len(str(n)) - 1]}-{n}"
    return found


class Schedule(ConfigModel):
    """When a rule is armed, in the appliance's own time zone. A span may run past midnight: `22:00-06:00`."""

    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS
    hours: tuple[str, ...] = ("00:00-24:00",)

    @field_validator("hours")
    @classmethod
    def _spans(cls, hours: tuple[str, ...]) -> tuple[str, ...]:
        for span in hours:
            if not _SPAN.match(span):
                raise ValueError(f"`{span}` is not a span of hours such as 22:00-06:00")
        return hours


class Finding(NamedTuple):
    """One answer of a check: about which key of the site file, how it is, and what to do."""

    about: str
    level: Literal["ok", "warning", "unreachable", "wrong"]
    text: str
