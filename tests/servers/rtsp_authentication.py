"""Basic and Digest authentication of RTSP, as cameras ask for it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Literal

AuthScheme = Literal["basic", "digest"]
REALM = "vedette-demo"
_FIELD = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s,]+))')


class RtspAuthenticator:
    """Knows the one user and decides whether an Authorization header proves the password.

    State: none that changes. The nonce belongs to the connection that asks.
    """

    def __init__(self, user: str, password: str, schemes: Iterable[AuthScheme] = ("digest", "basic")) -> None:
        self._user = user
        self._password = password
        self._schemes = tuple(schemes)

    def challenges(self, nonce: str) -> list[str]:
        """Return the WWW-Authenticate headers of a 401."""
        offers = {
            "digest": f'Digest realm="{REALM}", nonce="{nonce}", algorithm=MD5',
            "basic": f'Basic realm="{REALM}"',
        }
        return [offers[scheme] for scheme in self._schemes]

    def accepts(self, header: str, method: str, target: str, nonce: str) -> bool:
        """Return whether `header` (the Authorization header, may be empty) proves the password for this request."""
        kind, _, rest = header.partition(" ")
        if kind.lower() == "basic" and "basic" in self._schemes:
            return self._basic(rest)
        if kind.lower() == "digest" and "digest" in self._schemes:
            return self._digest(rest, method, target, nonce)
        return False

    def _basic(self, encoded: str) -> bool:
        try:
            given = base64.b64decode(encoded.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(given, f"{self._user}:{self._password}".encode())

    def _digest(self, text: str, method: str, target: str, nonce: str) -> bool:
        given = {name.lower(): quoted or bare for name, quoted, bare in _FIELD.findall(text)}
        if (given.get("username"), given.get("nonce"), given.get("uri")) != (self._user, nonce, target):
            return False
        secret = _md5(f"{self._user}:{REALM}:{self._password}")
        request = _md5(f"{method}:{target}")
        middle = f"{nonce}:{given.get('nc', '')}:{given.get('cnonce', '')}:auth" if given.get("qop") else nonce
        expected = _md5(f"{secret}:{middle}:{request}")
        return hmac.compare_digest(expected.encode(), given.get("response", "").lower().encode())


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
