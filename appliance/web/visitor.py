"""Defines the visitor: the person or program that sent a request, and what they may do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from appliance.types.accounts import ROLES, Role


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
