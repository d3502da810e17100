"""`/api/v1/users`, sessions and tokens of programs: who may use this dashboard; `/api/v1/access-log`: what they did.

The log has sign-ins, looks at recordings, exports and changes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from appliance.base.credentials import hashed
from appliance.base.errors import UsageError
from appliance.dashboard.alert_reader import time_of
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.exports_api import Log
from appliance.dashboard.schemas import API, ApiModel, Flag, RequestModel
from appliance.store.users import LOG_ROWS_MAX, AccessLog, AccessQuery
from appliance.types.accounts import Role, SessionRow, UserRow, same_name
from appliance.web.auth import COOKIE, Access, AccessPart
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList
from appliance.web.templating import csv_file
from appliance.web.visitor import visitor

LOG_SHOWN = 20  # rows on the page; the page Who looked has them all

router = RouteList(prefix=API, tags=["users"])

CameraNames = Annotated[list[Annotated[str, Field(max_length=64)]] | None, Field(max_length=256)]


class UserItem(ApiModel):
    """A user.

    cameras: those that they may see; null: all. sessions: how many they have. second_factor: sign-ins require one.
    """

    name: str
    role: Role
    cameras: tuple[str, ...] | None
    enabled: bool
    created_t: float
    sessions: int
    second_factor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionItem(SessionRow):
    """Somebody who is signed in. user '': with the site's token. here: this is the session that asks."""

    here: bool


class TokenItem(ApiModel):
    """A token of a program. scope: the role of the token, as the API calls it."""

    id: str
    name: str
    scope: Role
    made_by: str
    created_t: float


class NewToken(TokenItem):
    """token: to be sent as a bearer; it is shown this once."""

    token: str


class AddUser(RequestModel):
    name: Annotated[str, Field(max_length=64), AfterValidator(same_name)]
    password: SecretStr
    role: Role = "viewer"
    cameras: CameraNames = None


class ChangeUser(RequestModel):
    """The changes of a user; what is left out stays.

    `cameras: null` means all. second_factor false removes it: the phone is lost.
    """

    role: Role | None = None
    cameras: CameraNames = None
    enabled: Flag | None = None
    password: SecretStr | None = None
    second_factor: Literal[False] | None = None


class AddToken(RequestModel):
    name: Annotated[str, Field(max_length=64), AfterValidator(same_name)]
    scope: Role = "viewer"


@contextmanager
def refusals(access: Access) -> Iterator[None]:
    """Turn the store's refusals into problems; afterwards `access` knows what was changed."""
    try:
        with refused_as({UsageError: 422}):
            yield
    finally:
        access.reread()


def refuse_token(access: Access) -> None:
    """Raise Problem if the request comes with a token, because a token must not give rights that outlive it.

    The site's own token may do so as long as there are no users: its visitor has no name.
    """
    who = visitor().name
    if who.startswith("token ") or (not who and access.has_users):
        raise Problem(
            403,
            "A token gives nobody lasting admin rights: sign in as an admin, or run vedette users on the appliance.",
        )


def _known(access: Access, name: str) -> UserRow:
    found = access.store.users().get(name)
    if found is None:
        raise Problem(404, "There is no such user.")
    return found


def _checked_cameras(cameras: Cameras, wanted: list[str] | None) -> tuple[str, ...] | None:
    if wanted is None:
        return None
    if strange := [each for each in wanted if each not in cameras.configured]:
        raise Problem(422, f"There is no camera {strange[0]} in the site file.")
    return tuple(sorted(set(wanted)))


def users_of(access: Access) -> list[UserItem]:
    """All users, by name."""
    sessions = [each.user for each in access.sessions.listed()]
    return [
        UserItem.of_row(
            each, sessions=sessions.count(each.name), second_factor=access.has_second_factor(each.name)
        )
        for each in access.store.users().values()
    ]  # fmt: skip


def sessions_of(access: Access, request: Request) -> list[SessionItem]:
    """All sessions, newest first."""
    here = access.sessions.find(request.cookies.get(COOKIE, ""))
    return [SessionItem(**asdict(each), here=each == here) for each in access.sessions.listed()]


def tokens_of(access: Access) -> list[TokenItem]:
    """All tokens of programs, by name."""
    return [TokenItem.of_row(each, scope=each.role) for each in access.store.tokens().values()]


@router.get("/users")
def list_users(access: AccessPart) -> list[UserItem]:
    """All users, by name."""
    return users_of(access)


@router.post("/users", status_code=201)
def add_user(request: Request, access: AccessPart, cameras: Cameras, wanted: AddUser) -> list[UserItem]:
    """Add a user. Return all.

    The first must be an admin; from then on everybody signs in. A token cannot add an admin.
    """
    if wanted.role == "admin":
        refuse_token(access)
    with refusals(access):
        user = UserRow(
            name=wanted.name, role=wanted.role, cameras=_checked_cameras(cameras, wanted.cameras),
            password=hashed(wanted.password.get_secret_value()),
        )  # fmt: skip
        access.store.add(user)
    request.state.about = user.name  # the access log names this user beside the request
    return users_of(access)


@router.post("/users/{user}")
def change_user(access: AccessPart, cameras: Cameras, user: str, change: ChangeUser) -> list[UserItem]:
    """Change a user's role, cameras or password, or whether they may sign in. Return all users.

    If the user is an admin or becomes one, a token may only forbid the sign-in.
    """
    forbids = change.enabled is False and change.model_fields_set == {"enabled"}
    if "admin" in (_known(access, user).role, change.role) and not forbids:
        refuse_token(access)
    with refusals(access):
        changes: dict[str, Any] = {
            name: value for name, value in (("role", change.role), ("enabled", change.enabled)) if value is not None
        }
        if "cameras" in change.model_fields_set:
            changes["cameras"] = _checked_cameras(cameras, change.cameras)
        if change.password is not None:
            changes["password"] = hashed(change.password.get_secret_value())
        access.store.change(user, lambda row: replace(row, **changes))
        if change.second_factor is False:
            access.factors.remove(user)
    return users_of(access)


@router.delete("/users/{user}")
def remove_user(access: AccessPart, user: str) -> list[UserItem]:
    """Remove a user and their sessions. Answers with those that are left."""
    _known(access, user)
    with refusals(access):
        access.store.remove(user)
    return users_of(access)


@router.get("/sessions")
def list_sessions(request: Request, access: AccessPart) -> list[SessionItem]:
    """Return the sessions of those who are signed in, newest first."""
    return sessions_of(access, request)


@router.delete("/sessions/{session}")
def end_session(request: Request, access: AccessPart, session: str) -> list[SessionItem]:
    """Sign somebody out. Answers with the sessions that are left."""
    access.sessions.end(session)
    return sessions_of(access, request)


@router.get("/tokens")
def list_tokens(access: AccessPart) -> list[TokenItem]:
    """Return the tokens of programs, by name."""
    return tokens_of(access)


@router.post("/tokens", status_code=201)
def add_token(request: Request, access: AccessPart, wanted: AddToken) -> NewToken:
    """Make a token for a program. It is in this response and nowhere else.

    From then on everybody signs in. A token cannot make a token with the scope `admin`.
    """
    if wanted.scope == "admin":
        refuse_token(access)
    token = f"vdt_{secrets.token_urlsafe(30)}"
    if not access.has_token and not access.has_users:
        raise Problem(422, "Add a user first: with a token alone, nobody could sign in to this dashboard.")
    with refusals(access):
        row = access.store.add_token(token, wanted.name, wanted.scope, visitor().name)
    request.state.about = row.name
    return NewToken.of_row(row, scope=row.role, token=token)


@router.delete("/tokens/{token}")
def revoke_token(access: AccessPart, token: str) -> list[TokenItem]:
    """Revoke a token by its id. Answers with those that are left."""
    with refusals(access):
        access.store.remove_token(token)
    return tokens_of(access)


class AccessLogItem(ApiModel):
    """A login, a look at a recording, or a change.

    who: a user, `token NAME`, or '' for the owner without a user. camera: of which it was; '': of none.
    """

    t: float
    who: str
    address: str
    what: str
    about: str
    camera: str


class AccessLogQuery(BaseModel):
    """The choices as an HTML form sends them; an empty one means any. from, to: days, moments or UTC seconds."""

    who: Annotated[str, Field(max_length=100)] = ""
    camera: Annotated[str, Field(max_length=64)] = ""
    begin: Annotated[str, Field(alias="from", max_length=40)] = ""
    end: Annotated[str, Field(alias="to", max_length=40)] = ""


class AccessFilter:
    """Which rows of the log are wanted. Raises Problem for a wrong time."""

    def __init__(self, asked: Annotated[AccessLogQuery, Query()]) -> None:
        self.chosen: dict[str, str] = asked.model_dump(by_alias=True)
        self._begin, self._end = time_of("from", asked.begin, 0), time_of("to", asked.end, 1)

    def rows(self, log: AccessLog, limit: int) -> list[AccessLogItem]:
        """Return the newest of them."""
        wanted = AccessQuery(
            self.chosen["who"] or None, self.chosen["camera"] or None, self._begin or 0.0,
            9e15 if self._end is None else self._end,
        )  # fmt: skip
        return [AccessLogItem.model_validate(row) for row in log.newest(limit, wanted)]


Filtered = Annotated[AccessFilter, Depends()]


@router.get("/access-log")
def access_log(
    log: Log, wanted: Filtered, limit: Annotated[int, Query(ge=1, le=LOG_ROWS_MAX)] = 100
) -> list[AccessLogItem]:
    """Return logins, looks at recordings and live pictures, exports and changes, newest first."""
    return wanted.rows(log, limit)


@router.get("/access-log.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def access_log_csv(log: Log, wanted: Filtered) -> Response:
    """Return the access log as CSV, newest first; t in UTC seconds."""
    names = list(AccessLogItem.model_fields)
    rows = [[getattr(row, name) for name in names] for row in wanted.rows(log, LOG_ROWS_MAX)]
    return csv_file("access-log.csv", names, rows)
