"""Headers in which a reverse proxy names its visitor: address, protocol, user. Only named proxies are believed."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from appliance.web.acceptor import is_inside

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

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
            try:
                address = str(ipaddress.ip_address(each.strip("[]")))
            except ValueError:
                return ""
            if not self._trusts(address):
                return address
        return ""

    def _trusts(self, address: str) -> bool:
        return any(is_inside(address, each) for each in self._proxies)
