"""Defines the accounts of a web program's users: users, tokens, sessions, second factors, roles; and their tables.

The program that serves the pages brings the real tables. Each of their methods is called from any thread, and raises
StoreError where the table cannot be read or written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Role = Literal["viewer", "reviewer", "admin"]
"""viewer: sees; reviewer: also reviews and keeps; admin: also changes settings and users. Each may what those before
may."""
ROLES: tuple[Role, ...] = get_args(Role)
NAME_CHARS_MAX = 64  # as in the access log's columns
_NAME = re.compile(r"\w(?:[\w.@'-]| (?! ))*(?<! )")
_OF_TOKENS = "token "  # how the access log names programs


def same_name(name: str) -> str:
    """Return a name in the one form in which it is stored and compared, however a keyboard composes its letters."""
    return unicodedata.normalize("NFC", name.strip())


def name_problem(name: str) -> str:
    """Return why a person or program cannot be called so; '': they can."""
    if len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name) and not name.casefold().startswith(_OF_TOKENS):
        return ""
    return (
        f"`{name[:80]}` is no name: 1 to {NAME_CHARS_MAX} letters, digits, single blanks and . _ @ ' -, "
        "the first a letter or digit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """A person. cameras: those that they may see; None: all. password: a salted hash."""

    name: str
    role: Role
    cameras: tuple[str, ...] | None
    password: str
    enabled: bool = True
    created_t: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTokenRow:
    """A token of a program. id: its digest."""

    id: str
    name: str
    role: Role
    made_by: str
    created_t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInCodeRow:
    """A code from the console that signs a user in once, in place of the password. digest: of the code."""

    user: str
    digest: str
    expires_t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session. id: a digest. user: '' for who signed in with the site's token. address: where from."""

    id: str
    user: str
    created_t: float
    expires_t: float
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondFactorRow:
    """A user's second factor. confirmed: sign-ins ask for it. recovery: digests of the codes that are left."""

    user: str
    secret: str
    confirmed: bool
    last_step: int
    recovery: tuple[str, ...]
    created_t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLogRow:
    """One login, look at a recording, or change.

    who: a user, `token NAME` of a program, '' for the site's own token or this machine. about: what was changed.
    camera: of which it was; '': of none.
    """

    id: int
    t: float
    who: str
    address: str
    what: str
    about: str
    camera: str = ""


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
