"""The shared token, the signed session cookie, and a throttle against guessing."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from itsdangerous import BadSignature, Signer

from appliance.clock import Clock

COOKIE = "vedette_session"
SESSION_S = 30 * 86400
_FREE_TRIES = 5
_BLOCK_S_MAX = 60.0
_FORGET_S = 900.0
_ADDRESSES_MAX = 1024


class SessionCookies:
    """Issues and checks signed session cookies `expiry.nonce.signature`; keeps no list, so a restart ends no session.

    The key is derived from the token: changing the token ends every session, and the cookie does not hold it.
    """

    def __init__(self, token: str, clock: Clock) -> None:
        self._token = hashlib.sha256(token.encode()).digest()
        self._signer = Signer(
            token, salt="vedette dashboard session", key_derivation="hmac", digest_method=hashlib.sha256
        )
        self._clock = clock

    def is_token(self, given: str) -> bool:
        """Constant-time comparison with the configured token (of digests: the length does not leak either)."""
        return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), self._token)

    def issue(self) -> str:
        """A new cookie value, good for `SESSION_S`."""
        return self._signer.sign(f"{int(self._clock.now()) + SESSION_S}.{secrets.token_urlsafe(12)}").decode()

    def accepts(self, cookie: str) -> bool:
        """Whether this is a cookie of ours that has not expired."""
        try:
            expiry = self._signer.unsign(cookie).partition(b".")[0]
        except BadSignature:
            return False
        return int(expiry) > self._clock.now()


@dataclass(slots=True)
class _Tries:
    wrong: int = 0
    last_at: float = 0.0
    blocked_until: float = 0.0


class LoginThrottle:
    """Slows down guessing: five free wrong tries per address, then a wait that doubles up to a minute.

    State: wrong tries of at most `_ADDRESSES_MAX` addresses, the least recent forgotten first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tries: OrderedDict[str, _Tries] = OrderedDict()

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return len(self._tries)

    def wait_s(self, address: str) -> float:
        """Seconds until `address` may try again; 0 means now."""
        tries = self._tries.get(address)
        return max(0.0, tries.blocked_until - self._clock.monotonic()) if tries else 0.0

    def wrong(self, address: str) -> None:
        """Note a wrong try."""
        now = self._clock.monotonic()
        tries = self._tries.pop(address, None)
        if tries is None or now - tries.last_at > _FORGET_S:
            tries = _Tries()
        tries.wrong += 1
        tries.last_at = now
        if tries.wrong >= _FREE_TRIES:
            tries.blocked_until = now + min(_BLOCK_S_MAX, 2.0 ** min(10, tries.wrong - _FREE_TRIES))
        self._tries[address] = tries
        while len(self._tries) > _ADDRESSES_MAX:
            self._tries.popitem(last=False)

    def right(self, address: str) -> None:
        """Forgive."""
        self._tries.pop(address, None)
