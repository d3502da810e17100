"""Web push as the standards say: messages that only the browser can read, and who sends them.

RFC 8291 (encryption for web push, with RFC 8188's aes128gcm) and RFC 8292 (VAPID).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.errors import UsageError
from appliance.notify.key_file import own_key
from appliance.store.push_subscriptions import PushSubscriptionStore

PUBLIC_KEY_BYTES, AUTH_BYTES = 65, 16
PLAIN_BYTES_MAX = 3900  # RFC 8291: one record, which push services take up to 4096 bytes of
TOKEN_S = 12 * 3600  # RFC 8292 allows 24 hours
_RECORD_BYTES = 4096
_KEY_FILE = "keys/push.pem"


def encrypt(plain: bytes, p256dh: bytes, auth: bytes) -> bytes:
    """The body of a push message for the browser with these keys. Raises UsageError: they are none, it is too long."""
    if len(plain) > PLAIN_BYTES_MAX:
        raise UsageError(f"a push message has at most {PLAIN_BYTES_MAX} bytes")
    browser = browser_key(p256dh, auth)
    own = ec.generate_private_key(ec.SECP256R1())
    public, salt = _point(own.public_key()), os.urandom(16)
    shared = own.exchange(ec.ECDH(), browser)
    secret = _derived(shared, auth, b"WebPush: info\x00" + p256dh + public, 32)
    key = _derived(secret, salt, b"Content-Encoding: aes128gcm\x00", 16)
    nonce = _derived(secret, salt, b"Content-Encoding: nonce\x00", 12)
    sealed = AESGCM(key).encrypt(nonce, plain + b"\x02", None)
    return salt + _RECORD_BYTES.to_bytes(4, "big") + bytes([len(public)]) + public + sealed


def browser_key(p256dh: bytes, auth: bytes) -> ec.EllipticCurvePublicKey:
    """Raises UsageError: these are no keys of a push subscription."""
    if len(p256dh) != PUBLIC_KEY_BYTES or len(auth) != AUTH_BYTES:
        raise UsageError("these are no keys of a push subscription")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), p256dh)
    except ValueError:
        raise UsageError("these are no keys of a push subscription") from None


class VapidKey:
    """The key by which push services know this appliance. State: the key, made at first use. Any thread."""

    def __init__(self, root: Path) -> None:
        """root: the storage folder."""
        self._path = root / _KEY_FILE
        self._key: ec.EllipticCurvePrivateKey | None = None

    @property
    def public(self) -> str:
        """As browsers want it (`applicationServerKey`). Raises MissingDependency."""
        return encode(_point(self._private().public_key()))

    def authorization(self, endpoint: str, contact: str, now: float) -> str:
        """The header of a message to `endpoint`. contact: an https: or mailto: address of who sends it."""
        parts = urlsplit(endpoint)
        claims = {"aud": f"{parts.scheme}://{parts.netloc}", "exp": int(now) + TOKEN_S, "sub": contact}
        parts_json = [json.dumps(part, separators=(",", ":")) for part in ({"typ": "JWT", "alg": "ES256"}, claims)]
        signed = ".".join(encode(part.encode()) for part in parts_json)
        r, s = decode_dss_signature(self._private().sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        signature = encode(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return f"vapid t={signed}.{signature}, k={self.public}"

    def _private(self) -> ec.EllipticCurvePrivateKey:
        if self._key is None:
            loaded = serialization.load_pem_private_key(own_key(self._path, _new_key), None)
            if not isinstance(loaded, ec.EllipticCurvePrivateKey):
                raise UsageError(f"{self._path} is no key for web push: delete it, and subscribe anew")
            self._key = loaded
        return self._key


@dataclass(frozen=True, slots=True)
class PushMeans:
    """What push targets share. sees: whether a user may see a camera. contact: of who sends, for push services."""

    key: VapidKey
    subscriptions: PushSubscriptionStore
    sees: Callable[[str, str], bool]
    contact: str


def encode(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _new_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)
