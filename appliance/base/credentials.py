"""Credentials: passwords (argon2id), codes from the console, one-time codes by time, and the appliance's own keys.

One-time codes follow RFC 6238 (SHA-1, 30 s, six digits, as all authenticator apps take them).
`seal` encrypts the secrets of a backup under a passphrase: AES-256-GCM with a key by scrypt. The package cryptography
has both. It takes 9 MB, and is loaded with the first backup that has secrets.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import io
import json
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from appliance.base.errors import MissingDependency, PreconditionError, UsageError

LENGTH_MIN = 10  # NIST SP 800-63B asks for 8
LENGTH_MAX = 256  # NIST SP 800-63B asks for 64; a bound keeps the hash from endless input
CODE_LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"  # nothing that looks like something else
DIFFERENT_MIN = 4  # characters: refuses aaaaaaaaaa and 1212121212
# Of ten characters and more, the first that anybody tries; what has fewer than four different ones is none, either.
_COMMON = (
    "1234567890 0123456789 0987654321 12345678910 1q2w3e4r5t 1qaz2wsx3edc q1w2e3r4t5 qwertyuiop qwertzuiop qwerty1234 "
    "qwerty12345 asdfghjkl1 abcdefghij abc1234567 password12 password123 password1234 passwort123 iloveyou123 "
    "letmein123 welcome123 welcome1234 changeme123 adminadmin admin12345 admin123456 administrator vedette123"
)

# OWASP's second choice: 19 MiB for some 30 ms, so that a Raspberry Pi watches on while somebody signs in.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_ONE_AT_A_TIME = threading.Lock()  # bounds the memory, whoever asks


def hashed(password: str) -> str:
    """Return the salted hash of a password. Raises UsageError: too short, too long, or one that everybody tries."""
    if not LENGTH_MIN <= len(password) <= LENGTH_MAX:
        raise UsageError(
            f"a password has {LENGTH_MIN} to {LENGTH_MAX} characters; four words that you remember will do"
        )
    if password.lower() in _COMMON.split() or len(set(password)) < DIFFERENT_MIN:
        raise UsageError("that is among the passwords that are tried first; four words that you remember will do")
    with _ONE_AT_A_TIME:
        return _HASHER.hash(password)


def is_password(given: str, stored: str | None) -> bool:
    """Return True if `given` is the password of the hash. None: there is no such user; this takes as long."""
    with _ONE_AT_A_TIME:
        try:
            return _HASHER.verify(stored or _of_nobody(), given[:LENGTH_MAX]) and stored is not None
        except (VerificationError, InvalidHashError):
            return False


@functools.cache
def _of_nobody() -> str:
    return _HASHER.hash(secrets.token_hex(16))


def new_code(groups: int) -> str:
    """Return a random code of groups of four letters and digits, 20 bits each."""
    return "-".join("".join(secrets.choice(CODE_LETTERS) for _ in range(4)) for _ in range(groups))


def code_digest(code: str) -> str:
    """Return the stored form of a code: it is random and long, so a plain digest cannot be reversed."""
    return hashlib.sha256(code.upper().replace("-", "").replace(" ", "").encode()).hexdigest()


def token_digest(token: str) -> str:
    """Return the stored form of a token: it is random and long, so a plain digest cannot be turned back."""
    return hashlib.sha256(token.encode()).hexdigest()


STEP_S = 30  # RFC 6238, 4.1; all authenticator apps know no other
DIGITS = 6  # RFC 4226, 5.3
RECOVERY_CODES = 10  # as other services give; they fit on a card
_AROUND = (0, -1, 1)  # a phone's clock is off by half a minute at most


def new_secret() -> str:
    """160 random bits in base32, as RFC 4226 (R6) recommends."""
    return base64.b32encode(secrets.token_bytes(20)).decode()


def code_at(secret: str, step: int, digits: int = DIGITS) -> str:
    """Return the code of a step of 30 s (RFC 4226, 5.3)."""
    digest = hmac.new(base64.b32decode(secret), step.to_bytes(8, "big"), hashlib.sha1).digest()
    at = digest[-1] & 0x0F
    number = int.from_bytes(digest[at : at + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**digits:0{digits}d}"


def step_of(secret: str, given: str, now: float) -> int | None:
    """Return the step around `now` whose code was given; None: it is none of them."""
    code = given.replace(" ", "")
    here = int(now) // STEP_S
    found = [here + n for n in _AROUND if hmac.compare_digest(code_at(secret, here + n).encode(), code.encode())]
    return found[0] if found else None


def qr_code(secret: str, user: str, site: str) -> bytes:
    """Return an SVG from which an app takes the secret, made here: no page elsewhere ever sees it."""
    label = quote(f"Vedette {site}:{user}")
    issuer = quote(f"Vedette {site}")
    address = f"otpauth://totp/{label}?secret={secret}&issuer={issuer}&period={STEP_S}&digits={DIGITS}"
    drawn = io.BytesIO()
    import segno

    segno.make(address, error="m", micro=False).save(drawn, kind="svg", scale=5, dark="#000", light="#fff")
    return drawn.getvalue()


def new_recovery_codes() -> list[str]:
    """Ten codes of 50 bits, for who has lost the phone."""
    codes = ("".join(secrets.choice(CODE_LETTERS) for _ in range(10)) for _ in range(RECOVERY_CODES))
    return [f"{each[:5]}-{each[5:]}" for each in codes]


KEY_BYTES_MAX = 4096  # a PEM key of any kind that we make has under 1 kB


def own_key(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the key at `path`, which is made the first time.

    Raise MissingDependency with the remedy.
    """
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")  # of this call alone
            if not path.exists():
                opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                try:
                    with os.fdopen(opened, "wb") as file:
                        file.write(make())
                        file.flush()
                        os.fsync(file.fileno())
                    os.link(temporary, path)  # the first one counts, also for two at once
                finally:
                    temporary.unlink()
        with path.open("rb") as file:
            return file.read(KEY_BYTES_MAX)
    except OSError as error:
        raise MissingDependency(f"{path}, a key of this appliance: {error.strerror}; check storage.dir") from None


PASSPHRASE_LENGTH_MIN = 10  # as a password (LENGTH_MIN); scrypt slows down guessing
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
