"""When a certificate (PEM) or the token of a NATS credentials file runs out, read without any package for either."""

from __future__ import annotations

import base64
import binascii
import json
import re
import ssl
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

FILE_BYTES_MAX = 256 * 1024  # a chain has some 6 kB
_JWT = re.compile(r"ey[\w-]+\.(ey[\w-]+)\.[\w-]+")
_EXPLICIT, _UTC_TIME = 0xA0, 0x17  # ASN.1 tags (X.690): the version, and a time with two digits of the year


def expires_t(path: Path) -> float | None:
    """Return the UTC seconds at which the first certificate or token in `path` runs out; None: never, or unreadable."""
    try:
        with path.open(encoding="latin-1") as file:
            text = file.read(FILE_BYTES_MAX)
        if "BEGIN CERTIFICATE" in text:
            first = text[text.index("-----BEGIN CERTIFICATE") :].partition("-----END CERTIFICATE-----")
            return _not_after(ssl.PEM_cert_to_DER_cert(first[0].strip() + "\n" + first[1] + "\n"))
        found = _JWT.search(text)
        claims = json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4))) if found else {}
        expires = claims.get("exp")
        return float(expires) if isinstance(expires, int | float) else None
    except (OSError, ValueError, IndexError, StopIteration, binascii.Error):
        return None


def _not_after(der: bytes) -> float:
    """Return the end of the validity of a certificate (RFC 5280, 4.1). Raise ValueError, IndexError, StopIteration."""
    _, certificate = next(_values(der))
    _, signed = next(_values(certificate))
    parts = [part for tag, part in _values(signed) if tag != _EXPLICIT]  # serial, algorithm, issuer, validity, ...
    _, (tag, end) = tuple(_values(parts[3]))
    text = end.decode("ascii")
    if tag == _UTC_TIME:  # RFC 5280: years below 50 are of this century
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of the values that follow each other in `data` (distinguished encoding)."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        yield tag, data[at : at + length]
        at += length
