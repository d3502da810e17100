"""Hashes users' passwords with argon2id and checks them one at a time; makes codes that the console shows."""

from __future__ import annotations

import functools
import hashlib
import secrets
import threading

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from appliance.base.errors import UsageError

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
