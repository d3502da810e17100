"""Sends a message to the browsers that people subscribed with, through the push services of their makers.

The cryptography is RFC 8291 (encryption, with RFC 8188's aes128gcm) and the signature of RFC 8292 (VAPID). Loaded with
the first message or browser: the package cryptography is 9 MB in a process.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.base.clock import Clock
from appliance.base.errors import UsageError
from appliance.config import PushTarget
from appliance.notify.http_sender import HttpPoster, HttpRequest, tls_verification
from appliance.notify.message import NotificationMessage, PushMeans, SendResult, is_good_news
from appliance.store.push_subscriptions import PushPreference, PushSubscription
from appliance.types import SEVERITIES

TTL_S = 4 * 3600  # for which the push service keeps it for a browser that is off
MESSAGES_REMEMBERED = 200  # ids of messages, so that an update replaces what a phone shows
_TEXT_CHARS_MAX = 1500  # in UTF-8 and JSON it fits into a record of 4096 bytes
_GONE = frozenset({404, 410})  # RFC 8030: the browser has taken its subscription back
_OTHER_KEY = frozenset({401, 403})  # services of Google, Mozilla and Apple: it subscribed to another key (RFC 8292)
PUBLIC_KEY_BYTES, AUTH_BYTES = 65, 16  # RFC 8291: an uncompressed point of P-256, and the authentication secret
PLAIN_BYTES_MAX = 3900  # RFC 8291: one record, which push services take up to 4096 bytes of
_RECORD_BYTES = 4096  # RFC 8291, 4: services need not take more

logger = logging.getLogger(__name__)


class PushSender:
    """The way to all browsers of a push target. Owner: one task.

    State: by message, the browsers that took it. A message that some browsers did not take is repeated to those alone.
    A subscription that its push service no longer knows is removed. One whose service does not accept our key, while
    another browser takes the message, belongs to an earlier key: it gets nothing, and delays no other.
    """

    def __init__(
        self,
        target: PushTarget,
        name: str,
        means: PushMeans,
        clock: Clock,
    ) -> None:
        """name: of the target."""
        self._target = target
        self._name = name
        self._means = means
        self._contact = target.contact or means.contact
        self._clock = clock
        self._poster = HttpPoster(target.timeout_s, tls_verification("https:", target.tls_ca), clock)
        self._taken: OrderedDict[str, set[str]] = OrderedDict()

    async def send(self, message: NotificationMessage) -> SendResult:
        """Never raises for what a service does. Raises StoreError."""
        began = self._clock.monotonic()
        wanted = [
            each for each in self._means.subscriptions.all(self._name)
            if self._means.only in ("", each.id) and (not message.camera or self._means.sees(each.user, message.camera))
        ]  # fmt: skip
        if not wanted:
            return SendResult(ok=False, refused=True, error="no browser has subscribed that may see this camera")
        preferences = {} if message.test else self._means.subscriptions.preferences()
        wanted = [each for each in wanted if self._wants(preferences.get(each.user), message)]
        if not wanted:
            return SendResult(ok=False, refused=True, later=True, error="Nobody wants to be told of it at this hour")
        taken, payload, sent = self._taken.setdefault(message.message_id, set()), _payload(message), 0
        self._taken.move_to_end(message.message_id)  # what is still repeated is forgotten last
        failed: list[SendResult] = []
        refusal: SendResult | None = None
        for each in wanted:
            if each.id not in taken:
                result = await self._send_one(each, payload, message)
                sent += result.sent
                if result.ok:
                    taken.add(each.id)
                elif result.status in _GONE:
                    self._means.subscriptions.remove(each.id)
                    logger.info(
                        "a browser of %s is notified no more: its subscription is gone", each.user or "the owner"
                    )
                elif result.refused:
                    refusal = result
                else:
                    failed.append(result)
        other_key = [each for each in failed if each.status in _OTHER_KEY]
        if taken and other_key:  # they never take it, and delay no other
            failed = [each for each in failed if each.status not in _OTHER_KEY]
            logger.warning("%d browsers subscribed to another key: they must subscribe anew", len(other_key))
        while len(self._taken) > MESSAGES_REMEMBERED:
            self._taken.popitem(last=False)
        ok = not failed and bool(taken)
        why = None if taken else failed[0] if failed else refusal
        return SendResult(
            ok=ok,
            status=201 if ok else why.status if why else None,
            refused=not failed and not taken,
            maybe=bool(taken) or any(each.maybe for each in failed),
            error="" if ok else failed[0].error if failed else "no browser takes it any more",
            after_s=None if taken else max((each.after_s or 0.0 for each in failed), default=None),
            payload=payload,
            sent=sent,
            seconds=self._clock.monotonic() - began,
        )

    def _wants(self, preference: PushPreference | None, message: NotificationMessage) -> bool:
        if preference is None:
            return True
        if preference.urgent and message.severity == "alert":
            return True
        if preference.quiet_hours and self._means.in_hours(preference.quiet_hours, self._clock.now()):
            return False
        return SEVERITIES.index(message.severity) >= SEVERITIES.index(preference.severity)

    async def close(self) -> None:
        await self._poster.close()

    async def _send_one(self, to: PushSubscription, payload: bytes, message: NotificationMessage) -> SendResult:
        try:
            self._target.check_endpoint(to.endpoint)
            body = encrypt(payload, to.p256dh, to.auth)
        except (UsageError, ValueError) as error:
            return SendResult(ok=False, refused=True, error=str(error))
        try:
            authorization = self._means.key.authorization(to.endpoint, self._contact, self._clock.now())
        except UsageError as error:  # a file that cannot be read now: it is tried again, and recording goes on
            return SendResult(ok=False, error=str(error))
        headers = {
            "content-type": "application/octet-stream",
            "content-encoding": "aes128gcm",
            "ttl": str(TTL_S),
            "urgency": "low" if is_good_news(message) else "high" if message.severity == "alert" else "normal",
            "topic": message.id[:32],  # replaces what a browser that is off has not got yet
            "authorization": authorization,
        }
        return await self._poster.post(HttpRequest(to.endpoint, body, headers), urlsplit(to.endpoint).hostname or "")


def _payload(message: NotificationMessage) -> bytes:
    """Return the JSON that the service worker shows; links come without the host, which it knows."""
    facts = {
        "title": message.title,
        "body": message.text[:_TEXT_CHARS_MAX],
        "tag": message.id,
        "url": _path(message.link),
        "snooze": _path(message.snooze),
    }
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()


def _path(link: str) -> str:
    return urlsplit(link).path if link else ""


def encrypt(plain: bytes, p256dh: bytes, auth: bytes) -> bytes:
    """Return the body of a push message for the browser with these keys.

    Raise UsageError if they are no keys, or if the text is too long.
    """
    if len(plain) > PLAIN_BYTES_MAX:
        raise UsageError(f"a push message has at most {PLAIN_BYTES_MAX} bytes")
    browser = browser_key(p256dh, auth)
    own = ec.generate_private_key(ec.SECP256R1())
    public, salt = point(own.public_key()), os.urandom(16)
    shared = own.exchange(ec.ECDH(), browser)
    secret = _derived(shared, auth, b"WebPush: info\x00" + p256dh + public, 32)
    key = _derived(secret, salt, b"Content-Encoding: aes128gcm\x00", 16)
    nonce = _derived(secret, salt, b"Content-Encoding: nonce\x00", 12)
    sealed = AESGCM(key).encrypt(nonce, plain + b"\x02", None)
    return salt + _RECORD_BYTES.to_bytes(4, "big") + bytes([len(public)]) + public + sealed


def browser_key(p256dh: bytes, auth: bytes) -> ec.EllipticCurvePublicKey:
    """Return the browser's public key; raise UsageError if these are no keys of a push subscription."""
    if len(p256dh) != PUBLIC_KEY_BYTES or len(auth) != AUTH_BYTES:
        raise UsageError("these are no keys of a push subscription")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), p256dh)
    except ValueError:
        raise UsageError("these are no keys of a push subscription") from None


def new_key() -> bytes:
    """Make a private key for VAPID, as PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey | None:
    """None: it is no key, or one of another kind."""
    try:
        loaded = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        return None
    return loaded if isinstance(loaded, ec.EllipticCurvePrivateKey) else None


def sign(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """ES256, as JSON web signatures have it (RFC 7518, 3.4)."""
    r, s = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def point(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return the key uncompressed."""
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)
