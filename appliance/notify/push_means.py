"""Sender and receivers of web push messages (RFC 8292, VAPID): the appliance's key and the subscribed browsers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from appliance.base.credentials import own_key
from appliance.base.errors import UsageError
from appliance.notify.message import encode
from appliance.store.paths import KEYS
from appliance.store.push_subscriptions import PushSubscriptionStore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

TOKEN_S = 12 * 3600  # RFC 8292 allows 24 hours
_KEY_FILE = f"{KEYS}/push.pem"


class VapidKey:
    """The key by which push services know this appliance. State: the key, made at first use. Any thread."""

    def __init__(self, root: Path) -> None:
        """root: the storage folder."""
        self._path = root / _KEY_FILE
        self._key: ec.EllipticCurvePrivateKey | None = None

    @property
    def public(self) -> str:
        """As browsers want it (`applicationServerKey`). Raises MissingDependency."""
        from appliance.notify.push_sender import point

        return encode(point(self._private().public_key()))

    def authorization(self, endpoint: str, contact: str, now: float) -> str:
        """Return the header of a message to `endpoint`.

        contact: an https: or mailto: address of the sender.
        """
        from appliance.notify.push_sender import sign

        parts = urlsplit(endpoint)
        claims = {"aud": f"{parts.scheme}://{parts.netloc}", "exp": int(now) + TOKEN_S, "sub": contact}
        parts_json = [json.dumps(part, separators=(",", ":")) for part in ({"typ": "JWT", "alg": "ES256"}, claims)]
        signed = ".".join(encode(part.encode()) for part in parts_json)
        return f"vapid t={signed}.{encode(sign(self._private(), signed.encode()))}, k={self.public}"

    def _private(self) -> ec.EllipticCurvePrivateKey:
        if self._key is None:
            from appliance.notify.push_sender import load_key, new_key

            self._key = load_key(own_key(self._path, new_key))
            if self._key is None:
                raise UsageError(f"{self._path} is no key for web push: delete it, and subscribe anew")
        return self._key


@dataclass(frozen=True, slots=True)
class PushMeans:
    """The parts that push targets share.

    sees: true if a user may see a camera. contact: the sender's address, for push services. only: the id of the one
    browser that is tried; '': all are sent to. in_hours: whether hours such as `22:00-06:00` cover a time.
    """

    key: VapidKey
    subscriptions: PushSubscriptionStore
    sees: Callable[[str, str], bool]
    contact: str
    only: str = ""
    in_hours: Callable[[str, float], bool] = lambda hours, t: False
