"""The cryptography of web push: RFC 8291 (encryption, with RFC 8188's aes128gcm) and the signature of RFC 8292 (VAPID).

Loaded with the first message or browser: the package cryptography is 9 MB in a process.
"""

from __future__ import annotations

import os

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.base.errors import UsageError

PUBLIC_KEY_BYTES, AUTH_BYTES = 65, 16  # RFC 8291: an uncompressed point of P-256, and the authentication secret
PLAIN_BYTES_MAX = 3900  # RFC 8291: one record, which push services take up to 4096 bytes of
_RECORD_BYTES = 4096  # RFC 8291, 4: services need not take more


def encrypt(plain: bytes, p256dh: bytes, auth: bytes) -> bytes:
    """Return the body of a push message for the browser with these keys.

    Raise UsageError if they are no keys, or if the text is too long.
    """
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


def public_point(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public key of a private key, uncompressed."""
    return _point(key.public_key())


def sign(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """ES256, as JSON web signatures have it (RFC 7518, 3.4)."""
    r, s = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)
