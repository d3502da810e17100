"""Defines the visitor: who sent a request, what they may do, and what a reverse proxy says of them.

Only the proxies that the settings name are believed.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from appliance.types.accounts import ROLES, Role
from appliance.web.acceptor import address_in, is_inside

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class Visitor:
    """The visitor that a request comes from.

    name: of a user, `token NAME` of a program; '' for the site's own token and, while there is neither token nor user,
    for this machine. cameras: those that they may see; None: all. by_proxy: a reverse proxy has let them in.
    """

    name: str = ""
    role: Role = "admin"
    cameras: frozenset[str] | None = None
    by_proxy: bool = False

    def may(self, role: Role) -> bool:
        """Return whether they may do what `role` may."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, camera: str) -> bool:
        """Return whether they may see this camera; '' is the appliance itself, which everybody may."""
        return self.cameras is None or not camera or camera in self.cameras


OWNER = Visitor()
NOBODY = Visitor("", "viewer", frozenset())
_VISITOR: ContextVar[Visitor] = ContextVar("visitor", default=OWNER)
_ADDRESS: ContextVar[str] = ContextVar("address", default="")


def visitor() -> Visitor:
    """Return the visitor of the request that is being answered, in any thread; outside of one, the owner."""
    return _VISITOR.get()


def visitor_keys() -> tuple[str, ...]:
    """Under what the share of this visitor in a common good is counted: their account, and their address.

    The site's own token and this machine are nobody's account, and outside of a request there is no address.
    """
    who, address = _VISITOR.get().name, _ADDRESS.get()
    return tuple(f"{kind} {value}" for kind, value in (("user", who), ("address", address)) if value)


def set_visitor(who: Visitor, address: str) -> None:
    """From here on this task, and the threads that it starts, answer `who`, at `address`."""
    _VISITOR.set(who)
    _ADDRESS.set(address)


class VisitorSlots:
    """State: how many are taken, of all and of each visitor who has one. Owner: the event loop."""

    def __init__(self, total: int, share: int, error: type[Exception], full: str, own: str) -> None:
        """error: raised with `full` where all are taken, with `own` where this visitor's share is."""
        self._total, self._share = total, share
        self._error, self._full, self._own = error, full, own
        self._held: Counter[str] = Counter()
        self.taken = 0

    def take(self) -> Callable[[], None]:
        """Take one, for the visitor who asks. Returns what gives it back, once. Raises the error."""
        keys = visitor_keys()
        if any(self._held[key] >= self._share for key in keys):
            raise self._error(self._own)
        if self.taken >= self._total:
            raise self._error(self._full)
        self.taken += 1
        self._held.update(keys)

        def give_back() -> None:
            self.taken -= 1
            self._held -= Counter(keys)  # and those who have none left are forgotten

        return give_back


FORWARDED = _FOR, _PROTO = "x-forwarded-for", "x-forwarded-proto"


class ProxyHeaders:
    """ASGI middleware outside of all others: puts what a trusted proxy says into the scope.

    State: `ignored`, how often each of these headers came from elsewhere (or the user's header twice). Owner: the event
    loop. `state.proxy_user` is the user whom the proxy has let in, None where it names none.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[str], user_header: str, ignored: Counter[str]) -> None:
        """proxies: addresses and networks. user_header: in which they name the user; '': they do not."""
        self._app = app
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in proxies]
        self._user_header = user_header.lower()
        self._ignored = ignored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            scope.setdefault("state", {})["proxy_user"] = None
            if self._trusts(str((scope.get("client") or ("", 0))[0])):
                self._believe(scope, headers)
            else:
                names = (*FORWARDED, self._user_header)
                self._ignored.update(name for name in names if name and name in headers)
        await self._app(scope, receive, send)

    def _believe(self, scope: Scope, headers: Headers) -> None:
        if headers.get(_PROTO) in {"http", "https"}:
            scope["scheme"] = headers[_PROTO]
        if visitor := self._visitor_of(headers.getlist(_FOR)):
            scope["client"] = (visitor, 0)
        named = headers.getlist(self._user_header) if self._user_header else []
        if len(named) == 1:
            scope["state"]["proxy_user"] = named[0].strip() or None
        elif named:  # one of them is the visitor's own
            self._ignored[self._user_header] += 1

    def _visitor_of(self, values: Sequence[str]) -> str:
        """Return the last address that belongs to none of our proxies; '': there is none.

        Each proxy appends the address that it has seen.
        """
        for each in reversed([part.strip() for value in values for part in value.split(",")]):
            if (address := address_in(each.strip("[]"))) is None:
                return ""
            if not self._trusts(str(address)):
                return str(address)
        return ""

    def _trusts(self, address: str) -> bool:
        return any(is_inside(address, each) for each in self._proxies)
