"""Defines the accounts of a web program's users: users, tokens, sessions and second factors, and the roles."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, get_args

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
