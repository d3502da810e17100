"""Links in messages by which a target is not told of a camera or rule for a while: signed, for one use."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path

from appliance.base.credentials import own_key
from appliance.base.errors import MissingDependency, PreconditionError
from appliance.notify.message import NotificationMessage
from appliance.store.paths import KEYS
from appliance.store.push_subscriptions import UsedLinkStore

LINK_S = 12 * 3600.0  # from the alert on
SNOOZE_MINUTES = (15, 60)  # a delivery, and an hour in the garden
TOKEN_CHARS_MAX = 600  # a camera's and a rule's name of 64 characters each, encoded, with the signature
_KEY_FILE = f"{KEYS}/snooze.key"
_SIGNATURE_BYTES = 18  # 144 bits of an HMAC: nobody guesses it within its life

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnoozeOffer:
    """The right that a link gives: to silence `target` about a camera for a while.

    It covers this camera, or one rule of it.
    """

    id: str
    target: str
    camera: str
    rule: str
    expires_t: float
    used: bool = False


class SnoozeLinks:
    """Makes links and reads them. Any thread. State: the key, made at first use.

    The signature is over what the link allows, so nobody can ask for more than a message offered; who has the message
    may use it once, which is all that it is good for.
    """

    def __init__(self, root: Path, public_url: str, used: UsedLinkStore) -> None:
        """root: the storage folder. public_url '': no links are made."""
        self._path = root / _KEY_FILE
        self._base = public_url.rstrip("/")
        self._used = used
        self._key = b""

    def link(self, target: str, message: NotificationMessage) -> str:
        """For an alert's message; '': nobody could open it. The same message gives the same link.

        A key that cannot be read or made, on a full disk say, costs the link and not the message.
        """
        if not self._base or not message.alert or message.test:
            return ""
        rule = message.finding.rules[0] if len(message.finding.rules) == 1 else ""
        try:
            token = self._token(target, message.camera, rule, message.id, message.t + LINK_S)
        except MissingDependency as error:
            logger.warning("a message to %s goes without a link to snooze: %s", target, error)
            return ""
        return f"{self._base}/snooze/{token}"

    def read(self, token: str, now: float) -> SnoozeOffer:
        """Read a token; raise PreconditionError if it was not made here, or is too old."""
        head, _, signature = token[:TOKEN_CHARS_MAX].partition(".")
        try:
            given = _decoded(signature)
            body = _decoded(head)
        except (binascii.Error, ValueError):
            raise PreconditionError("this link is not whole") from None
        if not hmac.compare_digest(given, self._signature(head)):
            raise PreconditionError("this link belongs to another appliance")
        target, camera, rule, message_id, expires_t = json.loads(body)
        if now > expires_t:
            raise PreconditionError("this link is too old")
        key = hashlib.sha256(f"{message_id}|{target}".encode()).hexdigest()[:32]
        return SnoozeOffer(key, target, camera, rule, expires_t, self._used.is_used(key))

    def use(self, offer: SnoozeOffer) -> bool:
        """Use an offer; return False if it was used before. Raise StoreError."""
        return self._used.use(offer.id, offer.expires_t)

    def _token(self, target: str, camera: str, rule: str, message_id: str, expires_t: float) -> str:
        body = json.dumps([target, camera, rule, message_id, round(expires_t)], separators=(",", ":")).encode()
        head = _encoded(body)
        return f"{head}.{_encoded(self._signature(head))}"

    def _signature(self, head: str) -> bytes:
        self._key = self._key or own_key(self._path, lambda: secrets.token_bytes(32))
        return hmac.new(self._key, f"snooze|{head}".encode(), hashlib.sha256).digest()[:_SIGNATURE_BYTES]


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
