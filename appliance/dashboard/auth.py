"""Signing in: the shared token, the signed session cookie, a throttle against guessing, and the sign-in page."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Query, Request
from itsdangerous import BadSignature, Signer
from pydantic import BaseModel, ConfigDict, SecretStr
from starlette.responses import HTMLResponse, JSONResponse

from appliance.clock import Clock
from appliance.dashboard.deps import provided
from appliance.dashboard.problems import Problem
from appliance.dashboard.templating import Templates
from appliance.store.sessions import SessionStore

if TYPE_CHECKING:
    from starlette.types import Scope

COOKIE = "vedette_session"
SESSION_S = 30 * 86400
_FREE_TRIES = 5
_BLOCK_S_MAX = 60.0
_FORGET_S = 900.0
_ADDRESSES_MAX = 1024

router = APIRouter(include_in_schema=False)


class SessionCookies:
    """Issues and checks signed session cookies `expiry.nonce.signature`.

    The key is derived from the token: changing the token ends every session, and the cookie does not hold it. State:
    the sessions of the store, from which a restart takes them over; a cookie of none of them is signed out.
    """

    def __init__(self, token: str, clock: Clock, store: SessionStore) -> None:
        self._token = hashlib.sha256(token.encode()).digest()
        self._signer = Signer(
            token, salt="vedette dashboard session", key_derivation="hmac", digest_method=hashlib.sha256
        )
        self._clock = clock
        self._store = store
        self._sessions = store.all()

    def is_token(self, given: str) -> bool:
        """Constant-time comparison with the configured token (of digests: the length does not leak either)."""
        return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), self._token)

    def issue(self) -> str:
        """A new cookie value, good for `SESSION_S`. Raises StoreError."""
        expiry, nonce = int(self._clock.now()) + SESSION_S, secrets.token_urlsafe(12)
        self._store.add(_digest(nonce), "", expiry)
        self._sessions.add(_digest(nonce))
        return self._signer.sign(f"{expiry}.{nonce}").decode()

    def revoke(self, cookie: str) -> None:
        """End the session of `cookie`, wherever the cookie was copied to. Raises StoreError."""
        if self.accepts(cookie):
            session = _digest(self._signer.unsign(cookie).decode().partition(".")[2])
            self._store.remove(session)
            self._sessions.discard(session)

    def accepts(self, cookie: str) -> bool:
        """Whether this is a cookie of ours that has not expired and was not signed out."""
        try:
            expiry, _, nonce = self._signer.unsign(cookie).decode().partition(".")
        except BadSignature:
            return False
        return int(expiry) > self._clock.now() and _digest(nonce) in self._sessions


def _digest(nonce: str) -> str:
    return hashlib.sha256(nonce.encode()).hexdigest()


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


@dataclass(frozen=True, slots=True)
class Access:
    """What decides who may look. sessions None: no token is configured, and loopback is trusted."""

    sessions: SessionCookies | None
    throttle: LoginThrottle

    @classmethod
    def of(cls, token: SecretStr | None, clock: Clock, store: SessionStore) -> Access:
        """Raises StoreError."""
        sessions = None if token is None else SessionCookies(token.get_secret_value(), clock, store)
        return cls(sessions, LoginThrottle(clock))


AccessPart = Annotated[Access, Depends(provided(Access))]
TemplatesPart = Annotated[Templates, Depends(provided(Templates))]


def too_many_tries(wait_s: float) -> Problem:
    """429 with the time to wait."""
    seconds = int(wait_s) + 1
    return Problem(429, f"Too many wrong tokens from this address; wait {seconds} s.", {"Retry-After": str(seconds)})


def address_of(scope: Scope) -> str:
    """The peer's address; an IPv6 one cut to its /64, which one visitor usually has whole."""
    host = str((scope.get("client") or ("unknown", 0))[0])
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
    except ValueError:
        return host


class SignIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    token: SecretStr


@router.get("/login")
def login_page(templates: TemplatesPart, wanted: Annotated[str, Query(alias="next")] = "/") -> HTMLResponse:
    """The sign-in page; afterwards it leads to `next`, if that is a page of ours."""
    return templates.page("login.html", next=local_path(wanted))


@router.post("/login")
async def sign_in(request: Request, access: AccessPart, given: SignIn) -> JSONResponse:
    """Take the token, give the cookie."""
    sessions, throttle = access.sessions, access.throttle
    if sessions is None:
        return JSONResponse({"signed_in": True})
    address = address_of(request.scope)
    wait_s = throttle.wait_s(address)
    if wait_s:
        raise too_many_tries(wait_s)
    if not sessions.is_token(given.token.get_secret_value()):
        throttle.wrong(address)
        raise Problem(401, "That is not the token of this box.", {"WWW-Authenticate": "Bearer"})
    throttle.right(address)
    answer = JSONResponse({"signed_in": True})
    secure = request.url.scheme == "https"
    cookie = await asyncio.to_thread(sessions.issue)
    answer.set_cookie(COOKIE, cookie, SESSION_S, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
async def sign_out(request: Request, access: AccessPart) -> JSONResponse:
    """End the session, and let the browser forget the cookie and what it has kept of the pictures."""
    if access.sessions is not None:
        await asyncio.to_thread(access.sessions.revoke, request.cookies.get(COOKIE, ""))
    answer = JSONResponse({"signed_in": False}, headers={"Clear-Site-Data": '"cache"'})
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def local_path(wanted: str) -> str:
    """`wanted` if it is a path on this very host, else `/`: no open redirect (`//host` is another host)."""
    elsewhere = wanted.startswith("//") or "\\" in wanted or not wanted.isprintable()
    return wanted if wanted.startswith("/") and not elsewhere else "/"
