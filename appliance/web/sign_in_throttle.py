"""Slows down who guesses passwords and codes, and not the owner whom they guess at.

A try counts for its account from its address, for its address over all accounts, and for its account over all
addresses. The last does not hold who comes from where the account is signed in, or from this machine: strangers would
else keep an owner out for as long as they like. A browser that has signed in before shows a cookie that says so, and is
then counted by itself (OWASP, Slow Down Online Guessing Attacks with Device Cookies).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from appliance.base.clock import Clock

DEVICE_COOKIE = "vedette_device"
DEVICE_S = 365 * 86400  # a year: who signs in less often is slowed down like a stranger
FREE_TRIES = 5  # a person mistypes three times; each further try waits twice as long
FREE_TRIES_ADDRESS = 20  # over all accounts: a household has one
FREE_TRIES_ACCOUNT = 20  # over all addresses that are strange to it
CODE_BLOCK_S_MAX = 900.0  # of six digits: 100 tries a day for all strangers together
_BLOCK_S_MAX = 60.0  # 10 million guesses would take 19 years, and an owner waits a minute
_FORGET_S = 3600.0  # a stranger who pauses an hour between tries makes 24 a day
_KEYS_MAX = 1024  # addresses and accounts; the oldest goes, and memory stays bounded


@dataclass(slots=True)
class _Tries:
    wrong: int = 0
    last_at: float = 0.0
    blocked_until: float = 0.0


class LoginThrottle:
    """Slows down guessing: some free wrong tries for each key, then a wait that doubles up to `block_s_max`.

    State: wrong tries of at most `_KEYS_MAX` keys, the least recent forgotten first.
    """

    def __init__(self, clock: Clock, free_tries: int = FREE_TRIES, block_s_max: float = _BLOCK_S_MAX) -> None:
        self._clock = clock
        self._free_tries = free_tries
        self._block_s_max = block_s_max
        self._tries: OrderedDict[str, _Tries] = OrderedDict()

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._tries)

    def wait_s(self, key: str) -> float:
        """Seconds until `key` may try again; 0 means now."""
        tries = self._tries.get(key)
        return max(0.0, tries.blocked_until - self._clock.monotonic()) if tries else 0.0

    def wrong(self, key: str) -> bool:
        """Note a wrong try. Returns whether it is the one from which on `key` must wait."""
        now = self._clock.monotonic()
        tries = self._tries.pop(key, None)
        if tries is None or now - tries.last_at > _FORGET_S:
            tries = _Tries()
        tries.wrong += 1
        tries.last_at = now
        if tries.wrong >= self._free_tries:
            tries.blocked_until = now + min(self._block_s_max, 2.0 ** min(10, tries.wrong - self._free_tries))
        self._tries[key] = tries
        while len(self._tries) > _KEYS_MAX:
            self._tries.popitem(last=False)
        return tries.wrong == self._free_tries

    def take_back(self, key: str) -> None:
        """Forget the last try, which was not wrong.

        Those before it still count: a visitor with an account of their own gains nothing.
        """
        if tries := self._tries.get(key):
            tries.wrong, tries.blocked_until = max(0, tries.wrong - 1), 0.0

    def forgive(self, key: str) -> None:
        """Forget the wrong tries of `key`."""
        self._tries.pop(key, None)


@dataclass(frozen=True, slots=True)
class Guess:
    """A try to sign in.

    account: its name, '': a token. device: of the browser, where it has signed in to the account before, else ''.
    at_home: the account is signed in at this address, or it is this machine's. exists: the account.
    """

    account: str
    address: str
    device: str = ""
    at_home: bool = False
    exists: bool = True

    @property
    def place(self) -> str:
        """The mark that separates the owner from strangers, who all have the same: ''."""
        return self.device or (self.address if self.at_home else "")


class SignInThrottle:
    """Says how long a try must wait. Owner: the event loop.

    `codes` counts what comes after a right password: six digits are few, so all strangers together have
    `CODE_BLOCK_S_MAX` between two. Accounts that exist are counted apart, so that made-up names push none of them out.
    """

    def __init__(self, clock: Clock) -> None:
        self.codes = LoginThrottle(clock, block_s_max=CODE_BLOCK_S_MAX)
        self._pairs = LoginThrottle(clock)
        self._addresses = LoginThrottle(clock, FREE_TRIES_ADDRESS)
        self._accounts = {exists: LoginThrottle(clock, FREE_TRIES_ACCOUNT) for exists in (True, False)}

    def wait_s(self, guess: Guess) -> float:
        """Seconds until this try may be made; 0 means now."""
        pair = self._pairs.wait_s(_pair(guess))
        return max([pair, *(throttle.wait_s(key) for throttle, key in self._shared(guess))])

    def wrong(self, guess: Guess) -> bool:
        """Note a wrong try. Returns whether strangers must wait for the account from now on."""
        self._pairs.wrong(_pair(guess))
        held = [throttle.wrong(key) for throttle, key in self._shared(guess)]
        return len(held) > 1 and held[-1]

    def right(self, guess: Guess) -> None:
        """Take back a try that was noted as wrong and was right."""
        self._pairs.forgive(_pair(guess))
        for throttle, key in self._shared(guess):
            throttle.take_back(key)

    def _shared(self, guess: Guess) -> list[tuple[LoginThrottle, str]]:
        """Return the counts to which tries by others are added, too.

        A token is long: a client that guesses at one delays nobody who has an account.
        """
        if guess.device or not guess.account:
            return []
        strange = [] if guess.at_home else [(self._accounts[guess.exists], guess.account)]
        return [(self._addresses, guess.address), *strange]


def _pair(guess: Guess) -> str:
    return f"{guess.account} {guess.device or guess.address}"


def new_device(account: str, password: str) -> str:
    """Return a cookie for a browser that has signed in.

    password: the hash; with another one the cookie is worth nothing.
    """
    nonce = secrets.token_urlsafe(12)
    return f"{nonce}.{_signature(account, password, nonce)}"


def device_of(cookie: str, account: str, password: str) -> str:
    """Return the name of the browser that shows this cookie; '': it is none of ours for this account."""
    nonce, _, signature = cookie.partition(".")
    wanted = _signature(account, password, nonce)
    return f"browser {nonce}" if hmac.compare_digest(signature.encode(), wanted.encode()) else ""


def _signature(account: str, password: str, nonce: str) -> str:
    return hmac.new(password.encode(), f"device {account} {nonce}".encode(), hashlib.sha256).hexdigest()
