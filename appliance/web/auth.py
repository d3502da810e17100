"""Signing in: users, the shared token, the signed session cookie, a throttle against guessing, and the sign-in page."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from itsdangerous import BadSignature, Signer
from pydantic import BaseModel, SecretStr
from starlette.responses import JSONResponse

from appliance.base.clock import Clock
from appliance.base.credentials import code_digest, step_of, token_digest
from appliance.base.errors import StoreError
from appliance.types.accounts import (
    AccountTables,
    ApiTokenRow,
    Role,
    SecondFactorRow,
    SessionRow,
    SessionTable,
    SignInCodeRow,
    UserRow,
)
from appliance.web.acceptor import counted_address
from appliance.web.problems import Problem
from appliance.web.routes import provided
from appliance.web.sign_in_throttle import DEVICE_COOKIE, DEVICE_S, Guess, SignInThrottle, device_of, new_device
from appliance.web.templating import Templates
from appliance.web.visitor import OWNER, Visitor, visitor

if TYPE_CHECKING:
    from starlette.types import Scope

COOKIE = "vedette_session"
SESSION_S = 30 * 86400  # a month on a family's tablet
REREAD_S = 1.0  # after which `vedette users`, another process, is heeded
_ADDRESSES_MAX = 1024  # of users behind a proxy; a bound for one that invents addresses
_LOOPBACK = ("127.0.0.1", "::/64")  # as `address_of` writes them


class SessionCookies:
    """Issues and checks signed session cookies `expiry.nonce.signature`.

    The key is derived from the token: changing the token ends every session, and the cookie does not hold it. Without a
    token the nonce alone protects. State: the sessions of the store, from which a restart takes them over; a cookie of
    none of them is signed out.
    """

    def __init__(self, token: str | None, clock: Clock, store: SessionTable) -> None:
        self._token = None if token is None else hashlib.sha256(token.encode()).digest()
        self._signer = Signer(
            token or "no token", salt="vedette dashboard session", key_derivation="hmac", digest_method=hashlib.sha256
        )
        self._clock = clock
        self._store = store
        self._lock = threading.Lock()
        self._sessions = store.all()

    def is_token(self, given: str) -> bool:
        """Constant-time comparison with the configured token (of digests: the length does not leak either)."""
        return self._token is not None and hmac.compare_digest(hashlib.sha256(given.encode()).digest(), self._token)

    def issue(self, user: str = "", address: str = "") -> str:
        """Return a new cookie value, good for `SESSION_S`. Raise StoreError if it cannot be stored."""
        expiry, nonce = int(self._clock.now()) + SESSION_S, secrets.token_urlsafe(18)
        self._store.add(token_digest(nonce), user, expiry, address)
        self.reread()
        return self._signer.sign(f"{expiry}.{nonce}").decode()

    def revoke(self, cookie: str) -> None:
        """End the session of `cookie`, wherever the cookie was copied to. Raises StoreError."""
        session = self.find(cookie)
        if session is not None:
            self.end(session.id)

    def end(self, session: str) -> None:
        """End a session by its id. Raises StoreError."""
        self._store.remove(session)
        self.reread()

    def find(self, cookie: str) -> SessionRow | None:
        """Return the session of a cookie of ours that has not expired and was not signed out; None: it is none."""
        try:
            expiry, _, nonce = self._signer.unsign(cookie).decode().partition(".")
        except BadSignature:
            return None
        return self._sessions.get(token_digest(nonce)) if int(expiry) > self._clock.now() else None

    def reread(self) -> None:
        """Take the sessions from the store. Raises StoreError.

        One at a time: what one thread has read before a change would else take the place of what another read after it.
        """
        with self._lock:
            self._sessions = self._store.all()

    def listed(self) -> list[SessionRow]:
        """Those that are not over, newest first."""
        now = self._clock.now()
        return [each for each in self._sessions.values() if each.expires_t > now]


class Access:
    """Decide whether a request is let in, and as which visitor.

    State: users, tokens and sessions as the store has them, read each second for what another process changed. Owner:
    the event loop's thread and those that answer its requests.
    """

    def __init__(
        self,
        token: SecretStr | None,
        clock: Clock,
        tables: AccountTables,
        setup_code: str = "",
        second_factor_for: Collection[Role] = (),
    ) -> None:
        """Read users, tokens and sessions. Raise StoreError if they cannot be read.

        setup_code: the code that the first user must know; '': none is needed. second_factor_for: roles that must have
        one.
        """
        self._second_factor_for = frozenset(second_factor_for)
        self.setup_code = setup_code
        self.has_token = token is not None
        self.sessions = SessionCookies(token.get_secret_value() if token else None, clock, tables.sessions)
        self.store = tables.users
        self.factors = tables.factors
        self.log = tables.log
        self.throttle = SignInThrottle(clock)
        self._clock = clock
        self._users: dict[str, UserRow] = {}
        self._tokens: dict[str, ApiTokenRow] = {}
        self._factors: dict[str, SecondFactorRow] = {}
        self._sign_in_codes: dict[str, SignInCodeRow] = {}
        self._by_proxy: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._read_at = 0.0
        self._lock = threading.Lock()
        self.reread()

    @property
    def guarded(self) -> bool:
        """True if one must sign in. Otherwise loopback is trusted."""
        return self.has_token or bool(self._users) or bool(self._tokens)

    @property
    def in_setup(self) -> bool:
        """Return whether nothing but the set-up page is served."""
        return bool(self.setup_code) and not self._users

    @property
    def has_users(self) -> bool:
        return bool(self._users)

    def reread(self) -> None:
        """Take users, tokens and sessions from the store. Raises StoreError."""
        with self._lock:
            self._users, self._tokens = self.store.users(), self.store.tokens()
            self._factors, self._sign_in_codes = self.factors.all(), self.store.sign_in_codes()
            self.sessions.reread()
            self._read_at = self._clock.monotonic()

    def refresh(self) -> None:
        """`reread` if the last is older than `REREAD_S`; while the store cannot be read, what was known holds."""
        if self._clock.monotonic() - self._read_at > REREAD_S:
            with contextlib.suppress(StoreError):
                self.reread()

    def user(self, name: str) -> UserRow | None:
        """Return the user of that name who is enabled."""
        found = self._users.get(name)
        return found if found is not None and found.enabled else None

    def of_proxy(self, name: str) -> Visitor:
        """Return the user whom a reverse proxy has let in. Raise Problem if there is none of that name here."""
        user = self.user(name)
        if user is None:
            raise Problem(403, "The proxy has let you in, but here is no user of that name: an admin adds users.")
        return replace(visitor_of(user), by_proxy=True)

    def is_new_by_proxy(self, name: str, address: str) -> bool:
        """Return whether a proxy brings this user from that address for the first time since the start."""
        key = (name, address)
        is_new = key not in self._by_proxy
        self._by_proxy[key] = None
        self._by_proxy.move_to_end(key)
        while len(self._by_proxy) > _ADDRESSES_MAX:
            self._by_proxy.popitem(last=False)
        return is_new

    def now(self) -> float:
        """By the appliance's clock."""
        return self._clock.now()

    def second_factor(self, name: str) -> SecondFactorRow | None:
        """Return the second factor of a user, confirmed or not yet."""
        return self._factors.get(name)

    def has_second_factor(self, name: str) -> bool:
        """Return whether sign-ins of a user require a code."""
        found = self._factors.get(name)
        return found is not None and found.confirmed

    def wants_second_factor(self, who: Visitor) -> bool:
        """Return whether a user must set one up before they may do anything else. Programs have none."""
        return who.role in self._second_factor_for and who.name in self._users and not self.has_second_factor(who.name)

    def takes_code(self, name: str, given: str) -> bool:
        """Use up a code of the user's app, or one of their recovery codes. Raises StoreError."""
        row = self._factors.get(name)
        if row is None:
            return False
        step = step_of(row.secret, given, self._clock.now())
        if step is not None:
            return self.factors.take_step(name, step)
        taken = self.factors.take_recovery(name, code_digest(given))
        if taken:
            self.reread()
        return taken

    def guess(self, name: str, address: str, device: str = "") -> Guess:
        """How a try to sign in counts. device: the cookie of a browser that has signed in before; '': it has none."""
        user = self.user(name)
        signed_in = {each.address for each in self.sessions.listed() if each.user == name}
        at_home = address in signed_in or address in _LOOPBACK
        browser = device_of(device, name, user.password) if user and device else ""
        return Guess(name, address, browser, at_home, exists=user is not None)

    def sign_in_code(self, name: str, given: str) -> SignInCodeRow | None:
        """Return the code that `vedette users unlock` has printed for a user, if `given` is it."""
        row = self._sign_in_codes.get(name)
        if row is None or row.expires_t <= self._clock.now() or self.user(name) is None:
            return None
        return row if hmac.compare_digest(row.digest, code_digest(given)) else None

    def of_cookie(self, cookie: str) -> Visitor | None:
        """Return the visitor who is signed in with a cookie."""
        session = self.sessions.find(cookie) if cookie else None
        if session is None:
            return None
        if session.user:
            user = self.user(session.user)
            return None if user is None else visitor_of(user)
        return OWNER if self.has_token and not self._users else None

    def sign_in(self, name: str, address: str, password: str) -> str:
        """Return the cookie of a new session of a user whose checked password has this hash.

        Raise Problem if it was changed, or the user disabled or removed, while it was checked, and StoreError.
        """
        cookie = self.sessions.issue(name, address)
        self.reread()  # from here on such a change finds the session, and ends it
        user = self.user(name)
        if user is None or user.password != password:
            self.sessions.revoke(cookie)
            raise Problem(401, "Your password was changed just now.", {"WWW-Authenticate": "Bearer"})
        return cookie

    def still(self, request: Request) -> Callable[[], Visitor | None]:
        """Return a function that names the visitor of an open stream now; None: they may not see it any more.

        request: the one that opened the stream.
        """
        cookie = request.cookies.get(COOKIE, "")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        opened_by, was_guarded = visitor(), self.guarded

        def now() -> Visitor | None:
            self.refresh()
            if opened_by.by_proxy:
                user = self.user(opened_by.name)
                return None if user is None else replace(visitor_of(user), by_proxy=True)
            if not was_guarded:
                return None if self.guarded else opened_by
            return self.of_bearer(given.strip()) if scheme.lower() == "bearer" else self.of_cookie(cookie)

        return now

    def of_bearer(self, given: str) -> Visitor | None:
        """Which program sends this token."""
        if self.sessions.is_token(given):
            return OWNER
        found = self._tokens.get(token_digest(given))
        return None if found is None else Visitor(f"token {found.name}", found.role)


def visitor_of(user: UserRow) -> Visitor:
    """Return the visitor that a user is, with what they may do."""
    return Visitor(user.name, user.role, None if user.cameras is None else frozenset(user.cameras))


AccessPart = Annotated[Access, Depends(provided(Access))]
TemplatesPart = Annotated[Templates, Depends(provided(Templates))]


def check_wait(wait_s: float) -> None:
    """Raise Problem with the time to wait, which is 429, unless it is 0."""
    if wait_s:
        seconds = int(wait_s) + 1
        raise Problem(429, f"Too many wrong tries; wait {seconds} s.", {"Retry-After": str(seconds)})


def address_of(scope: Scope) -> str:
    """Return the peer's address as it is counted; see `counted_address`."""
    return counted_address(str((scope.get("client") or ("unknown", 0))[0]))


class SignedIn(BaseModel):
    """The result of a sign-in: whether the session cookie that came with this response is one."""

    signed_in: bool


async def signed_in(request: Request, access: Access, user: str, password: str | None = None) -> JSONResponse:
    """Return the response that carries a new session of `user` ('': of the token).

    password: the hash that was checked. Raise Problem if it is not the user's any more.
    """
    address = address_of(request.scope)
    answer = JSONResponse({"signed_in": True})
    if password is None:
        cookie = await asyncio.to_thread(access.sessions.issue, user, address)
    else:
        cookie = await asyncio.to_thread(access.sign_in, user, address, password)
    await asyncio.to_thread(access.log.write, user, address, "signed in")
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, cookie, SESSION_S, httponly=True, samesite="strict", secure=secure)
    if row := access.user(user):
        device = new_device(user, row.password)
        answer.set_cookie(
            DEVICE_COOKIE, device, DEVICE_S, path="/login", httponly=True, samesite="strict", secure=secure
        )
    return answer
