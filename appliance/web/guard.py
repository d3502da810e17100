"""Checks every request before the routes do (ASGI middleware): host name, origin (CSRF), visitor, response headers."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from appliance.base.clock import Clock
from appliance.base.telemetry import LogThrottle
from appliance.web import texts
from appliance.web.acceptor import ServedAddress, address_in
from appliance.web.auth import COOKIE, Access, address_of, check_wait
from appliance.web.problems import Problem, ProblemResponse, RouteMethods, wants_page
from appliance.web.sign_in_throttle import Guess
from appliance.web.visitor import NOBODY, OWNER, Visitor, set_visitor

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from appliance.web.tls import ServerCertificate  # cryptography: 9 MB, only where it speaks HTTPS

logger = logging.getLogger(__name__)

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SETUP_PATHS = frozenset({"/healthz", "/readyz", "/setup", "/language"})
_WITHOUT_FACTOR = frozenset({"/account", "/api/v1/me", "/logout"})
_BODY_BYTES_MAX = 4096  # a form of a page; what needs more is among PathRules.body_bytes_max
_PROXY_HEADERS = (  # as they begin; what a browser on this machine sends begins with none of them
    "forwarded", "via", "x-forwarded", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-", "x-envoy-",
    "x-azure-", "true-client-ip", "client-ip", "cf-", "cdn-", "fastly-", "akamai-", "incap-",
)  # fmt: skip
_HSTS = "max-age=31536000"
AnswerBug = Callable[[Request, Exception], Awaitable[Response]]
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self' blob:; "
        "connect-src 'self'; manifest-src 'self'; worker-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class PathRules:
    """The methods of a program's paths, and which paths need no visitor or take more than a form."""

    methods: RouteMethods = field(default_factory=lambda: RouteMethods(()))
    """Methods that each path takes."""
    open: frozenset[str] = frozenset({"/healthz", "/readyz", "/login", "/setup", "/language"})
    """Paths that everybody may ask for."""
    open_below: tuple[str, ...] = ("/static/",)
    """Beginnings of such paths."""
    body_bytes_max: Mapping[str, int] = field(default_factory=dict)
    """Most bytes of a body, by the beginning of its path; 4 KiB elsewhere."""
    uploads: frozenset[str] = frozenset()
    """Paths that take bytes, not JSON."""

    def bytes_max(self, path: str) -> int:
        """Return how many bytes the body of a request to `path` may have."""
        return next((most for start, most in self.body_bytes_max.items() if path.startswith(start)), _BODY_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The Host names we answer to. DNS rebinding needs a name of the attacker's, so names must be on the list.

    An address in figures cannot be rebound: where we listen on every interface (`any_address`), all are taken.
    """

    names: frozenset[str]
    any_address: bool

    @classmethod
    def of(cls, config: ServedAddress) -> AllowedHosts:
        listed = {name.lower() for name in config.allowed_hosts}
        return cls(_LOOPBACK | {config.host.lower()} | listed, config.host in {"0.0.0.0", "::"})

    def accept(self, host: str) -> bool:
        """`host` is a Host header: a name or address, with or without a port."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.names or (self.any_address and address_in(name) is not None)


class RequestGuard:
    """ASGI middleware in front of everything."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: AllowedHosts,
        access: Access,
        on_bug: AnswerBug,
        clock: Clock,
        paths: PathRules,
        language: Callable[[], str],
        certificate: ServerCertificate | None = None,
    ) -> None:
        """on_bug: what a request is answered that met a bug. language: of the site.

        certificate: HTTPS is spoken with it, and no HTTP.
        """
        self._app = app
        self._hosts = hosts
        self._access = access
        self._on_bug = on_bug
        self._language = language
        self._bugs = LogThrottle(logger, clock)
        self._certificate = certificate
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self._certificate and scope["scheme"] == "https" and not self._certificate.facts.self_signed:
                    headers.setdefault("Strict-Transport-Security", _HSTS)
                # Own scripts and styles are requested again (they carry an ETag); everything else is of this moment.
                headers.setdefault("Cache-Control", "no-cache" if scope["path"].startswith("/static/") else "no-store")
            await send(message)

        self._speak(scope, Headers(scope=scope))
        refusal = self._refusal(scope, Headers(scope=scope))
        try:
            body = CountedBody(receive, self._paths.bytes_max(scope["path"]))
            await (refusal or self._app)(scope, body, send_with_headers)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"a request met a bug: {type(error).__name__} in {where.name} of {Path(where.filename).name}"
            self._bugs.report(text, logging.ERROR, with_traceback=True)
            if started:
                raise  # the connection is closed: the answer is not what it began to be
            answer = await self._on_bug(Request(scope), error)
            await answer(scope, receive, send_with_headers)

    def _speak(self, scope: Scope, headers: Headers) -> None:
        """Set the language of the response.

        A program that requests none is answered in English, whatever the site speaks.
        """
        site = "" if scope["path"].startswith("/api/") else self._language()
        chosen = _cookie(headers, texts.COOKIE)
        texts.set_language(texts.choose_language(chosen, headers.get("accept-language", ""), site))

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        try:
            self._check_host(headers)
            if self._certificate and scope["scheme"] != "https":
                return _over_https(scope, headers)
            self._check_origin(scope, headers)
            return self._check_visitor(scope, headers)
        except Problem as problem:
            return ProblemResponse(problem)

    def _check_host(self, headers: Headers) -> None:
        if not self._hosts.accept(headers.get("host", "")):
            raise Problem(403, "This address is not on the list: add the host name to dashboard.allowed_hosts.")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        site = headers.get("sec-fetch-site", "none")
        if scope["method"] in _SAFE_METHODS:
            # Following a link from elsewhere is fine; being embedded or fetched by another site is not.
            if site in {"cross-site", "same-site"} and headers.get("sec-fetch-mode") != "navigate":
                raise Problem(403, "Another site may not load this.")
            return
        if _is_foreign(headers.get("origin"), headers.get("host", "")) or site not in {"none", "same-origin"}:
            raise Problem(403, "Changes are taken from this dashboard's own pages only.")
        length = headers.get("content-length", "")
        sent = scope["method"] == "POST" or length not in {"", "0"} or "transfer-encoding" in headers
        if scope["method"] not in self._paths.methods.of(scope):
            return  # the router refuses it
        if not sent:  # of these a browser asks first, whatever they hold: no form can send a DELETE
            return
        kind = "application/octet-stream" if scope["path"] in self._paths.uploads else "application/json"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
            raise Problem(415, f"Send the change as {kind}.")
        # Of both headers the server obeys this one (RFC 9112, 6.3), and a length says nothing then.
        if "transfer-encoding" in headers:
            raise Problem(411, "Send the change with a Content-Length, not in chunks.")
        length_max = self._paths.bytes_max(scope["path"])
        if not (length.isascii() and length.isdigit() and len(length) < 10) or int(length) > length_max:
            raise Problem(400, f"A change is one JSON object of at most {length_max} bytes.")

    def _check_visitor(self, scope: Scope, headers: Headers) -> Response | None:
        self._access.refresh()
        who = self._who(scope, headers)
        set_visitor(who or NOBODY, address_of(scope))
        state = scope.setdefault("state", {})
        if connection := state.get("connection"):
            connection.signed_in = who is not None
        state["user"] = who.name if who else ""
        state["known"] = who is not None and who.cameras is None  # the reasons of /healthz name cameras
        path: str = scope["path"]
        for_page = scope["method"] in _SAFE_METHODS and wants_page(path, headers.get("accept", ""))
        if self._access.in_setup and path not in _SETUP_PATHS and not path.startswith("/static/"):
            if for_page:
                return RedirectResponse("/setup", 303)
            raise Problem(403, "This box is not set up yet: open /setup in a browser.")
        if (
            who
            and not who.by_proxy  # which asks for what it asks for
            and self._access.wants_second_factor(who)
            and not (self._is_open(path) or path in _WITHOUT_FACTOR or path.startswith("/api/v1/me/"))
        ):
            if for_page:
                return RedirectResponse("/account", 303)
            raise Problem(403, "Your role needs a second factor: set one up at /account first.")
        if who or self._is_open(path):
            return None
        if not self._access.guarded:
            raise Problem(
                403, "Without users or dashboard.token only this machine itself may look, and not through a proxy."
            )
        if for_page:
            wanted = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)
        raise Problem(401, "Sign in, or send the token as a bearer.", {"WWW-Authenticate": "Bearer"})

    def _is_open(self, path: str) -> bool:
        return path in self._paths.open or path.startswith(self._paths.open_below)

    def _who(self, scope: Scope, headers: Headers) -> Visitor | None:
        if self._access.in_setup:
            return None
        named = scope.get("state", {}).get("proxy_user")
        if named is not None:
            return self._access.of_proxy(named)
        if not self._access.guarded:
            return OWNER if _is_from_here(scope, headers) else None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._of_bearer(given.strip(), address_of(scope))
        return self._access.of_cookie(_cookie(headers, COOKIE))

    def _of_bearer(self, given: str, address: str) -> Visitor | None:
        throttle, guess = self._access.throttle, Guess("", address)
        check_wait(throttle.wait_s(guess))
        found = self._access.of_bearer(given)
        if found is None:
            throttle.wrong(guess)
            logger.warning("a wrong token was sent from %s", address)
        return found


def _over_https(scope: Scope, headers: Headers) -> Response:
    """Lead a person to the same page over HTTPS. Raises Problem for programs: each request would show their token."""
    path: str = scope["path"]
    if scope["method"] not in _SAFE_METHODS or not wants_page(path, headers.get("accept", "")):
        raise Problem(426, "This port speaks HTTPS: write https:// instead of http://.", {"Upgrade": "TLS/1.2"})
    query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
    return RedirectResponse(f"https://{headers['host']}{quote(path)}{query}", 308)


class CountedBody:
    """`receive`, which ends the request when more comes than a change may have, whatever its headers say."""

    def __init__(self, receive: Receive, bytes_max: int) -> None:
        self._receive = receive
        self._bytes_max = bytes_max
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._bytes_max:
            raise Problem(413, f"A request has at most {self._bytes_max} bytes.")
        return message


def _is_foreign(origin: str | None, host: str) -> bool:
    try:
        return origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:
        return True


def _is_from_here(scope: Scope, headers: Headers) -> bool:
    """Return whether a program or person on this machine sends the request, as far as one can tell.

    A proxy on it comes from loopback, too. nginx passes requests on as HTTP/1.0 and without a header of its own, unless
    it is configured otherwise.
    """
    if scope.get("http_version") == "1.0" or any(name.startswith(_PROXY_HEADERS) for name in headers):
        return False
    address = address_in(str((scope.get("client") or ("", 0))[0]).partition("%")[0])
    return address is None or address.is_loopback  # no address: not over a network


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
