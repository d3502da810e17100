"""Defines the tables of accounts that signing in needs; the program that serves the pages brings the real ones.

Each method is called from any thread, and raises StoreError where the table cannot be read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.types.accounts import (
    AccessLogRow,
    ApiTokenRow,
    Role,
    SecondFactorRow,
    SessionRow,
    SignInCodeRow,
    UserRow,
)


class UserTable(Protocol):
    """Users, the tokens of programs, and codes from the console."""

    def users(self) -> dict[str, UserRow]:
        """All users, by name."""

    def tokens(self) -> dict[str, ApiTokenRow]:
        """All tokens, by digest."""

    def sign_in_codes(self) -> dict[str, SignInCodeRow]:
        """Codes that were not used, by user."""

    def take_sign_in_code(self, row: SignInCodeRow) -> bool:
        """Use up a code. False: another sign-in has."""

    def add(self, user: UserRow) -> None:
        """Add a user. Raise UsageError with the remedy if that cannot be."""

    def change(self, name: str, changed: Callable[[UserRow], UserRow]) -> None:
        """Replace a user's row. Raise UsageError with the remedy if that cannot be."""

    def remove(self, name: str) -> None:
        """Remove a user. Raise UsageError with the remedy if that cannot be."""

    def add_token(self, token: str, name: str, role: Role, made_by: str) -> ApiTokenRow:
        """Keep the digest of a token. Raise UsageError with the remedy if that cannot be."""

    def remove_token(self, token_id: str) -> None: ...


class SessionTable(Protocol):
    """Sessions, by the digest of their secret."""

    def add(self, session: str, user: str, expires_t: float, address: str = "") -> None: ...

    def remove(self, session: str) -> None: ...

    def all(self) -> dict[str, SessionRow]:
        """Sessions that are not over, newest first."""


class SecondFactorTable(Protocol):
    """Second factors, by user."""

    def all(self) -> dict[str, SecondFactorRow]: ...

    def begin(self, user: str, secret: str) -> None:
        """Store a secret that sign-ins do not require yet."""

    def confirm(self, user: str, step: int, recovery: Sequence[str]) -> None:
        """Require a code at sign-ins from now on. recovery: digests of the recovery codes."""

    def remove(self, user: str) -> None: ...

    def take_step(self, user: str, step: int) -> bool:
        """Use up the codes until `step`. False: they are used up already."""

    def take_recovery(self, user: str, digest: str) -> bool:
        """Use up a recovery code. False: there is none of that digest."""


class AccessLogTable(Protocol):
    """The log of sign-ins and changes."""

    def write(self, who: str, address: str, what: str, about: str = "") -> None: ...

    def refused(self, who: str, since: float) -> tuple[int, int]:
        """How many wrong tries to sign in as `who` there were since then, and from how many addresses."""

    def newest(self, limit: int = 100) -> list[AccessLogRow]: ...


@dataclass(frozen=True, slots=True)
class AccountTables:
    """The four tables of accounts."""

    users: UserTable
    sessions: SessionTable
    factors: SecondFactorTable
    log: AccessLogTable
