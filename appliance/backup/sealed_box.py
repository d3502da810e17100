"""Encrypts the secrets of a backup under a passphrase: AES-256-GCM with a key by scrypt.

The package cryptography has both. It takes 9 MB, and is loaded with the first backup that has secrets.
"""

from __future__ import annotations

import base64
import json
import os

from appliance.base.errors import PreconditionError, UsageError

PASSPHRASE_LENGTH_MIN = 10  # as a password (credentials.LENGTH_MIN); scrypt slows down guessing
_COST, _BLOCK, _LANES = 2**15, 8, 1  # 32 MB and a tenth of a second for each passphrase that is tried
_COST_MAX, _BLOCK_MAX, _LANES_MAX = 2**17, 16, 4  # for a backup of unknown origin
_NAME = b"vedette.backup 1"


def seal(secret: bytes, passphrase: str) -> bytes:
    """Encrypt `secret` as JSON that this passphrase alone opens. Raise UsageError if the passphrase is too short."""
    if len(passphrase) < PASSPHRASE_LENGTH_MIN:
        raise UsageError(f"a passphrase has at least {PASSPHRASE_LENGTH_MIN} characters: whoever has the file can try")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    salt, nonce = os.urandom(16), os.urandom(12)
    box = AESGCM(_key(passphrase, salt, _COST, _BLOCK, _LANES)).encrypt(nonce, secret, _NAME)
    values = {"n": _COST, "r": _BLOCK, "p": _LANES, "salt": _text(salt), "nonce": _text(nonce), "box": _text(box)}
    return json.dumps(values).encode()


def unseal(box: bytes, passphrase: str) -> bytes:
    """Return the secret. Raise PreconditionError for another passphrase, or if the JSON was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        values = json.loads(box)
        n, r, p = int(values["n"]), int(values["r"]), int(values["p"])
        salt, nonce, sealed = (base64.b64decode(values[name], validate=True) for name in ("salt", "nonce", "box"))
        if not (2 <= n <= _COST_MAX and 1 <= r <= _BLOCK_MAX and 1 <= p <= _LANES_MAX):
            raise ValueError
        return AESGCM(_key(passphrase, salt, n, r, p)).decrypt(nonce, sealed, _NAME)
    except InvalidTag:
        raise PreconditionError("this is not the passphrase that its secrets were sealed with") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise PreconditionError("its sealed secrets are damaged") from None


def _key(passphrase: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(passphrase.encode())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
