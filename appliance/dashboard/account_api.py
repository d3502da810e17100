"""`/api/v1/me` and the page `/account`: one's own password, sessions and second factor."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import Field, SecretStr

from appliance.base.credentials import (
    code_digest,
    hashed,
    is_password,
    new_recovery_codes,
    new_secret,
    qr_code,
    step_of,
)
from appliance.dashboard.openapi import media
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.users_api import SessionItem, refusals, sessions_of
from appliance.types.accounts import Role, UserRow
from appliance.web.auth import Access, AccessPart, TemplatesPart, check_wait
from appliance.web.problems import Problem
from appliance.web.routes import RouteList
from appliance.web.visitor import visitor

_WITHIN = "signed in"  # whom strangers at the sign-in page do not hold up
GUESSED_S = 7 * 86400.0  # wrong tries of so long are told

router = RouteList(prefix=f"{API}/me", tags=["account"])


class SecondFactorItem(ApiModel):
    """state: none; begun (a secret waits for its first code); on. wanted: the role lacks it. recovery: codes left."""

    state: Literal["none", "begun", "on"]
    wanted: bool
    recovery: int


class Me(ApiModel):
    """The account that sends the request.

    name '': the site's token, or this machine while there are neither users nor token.
    """

    name: str
    role: Role
    cameras: tuple[str, ...] | None
    second_factor: SecondFactorItem


class SecondFactorSecret(ApiModel):
    """For the authenticator app: `secret` to be typed, or `qr`, a picture of it."""

    secret: str
    qr: str


class RecoveryCodes(ApiModel):
    """Each signs in once in place of a code of the app. They are in this answer and nowhere else."""

    codes: list[str]


class ChangePassword(RequestModel):
    old: SecretStr
    new: SecretStr


class GivenPassword(RequestModel):
    password: SecretStr


class GivenCode(RequestModel):
    code: Annotated[str, Field(max_length=32)]


def me_of(access: Access) -> Me:
    """Return the account that sends the request, and what it may do."""
    who, row = visitor(), access.second_factor(visitor().name)
    factor = SecondFactorItem(
        state="none" if row is None else "on" if row.confirmed else "begun", wanted=access.wants_second_factor(who),
        recovery=len(row.recovery) if row else 0,
    )  # fmt: skip
    cameras = None if who.cameras is None else tuple(sorted(who.cameras))
    return Me(name=who.name, role=who.role, cameras=cameras, second_factor=factor)


def _own(access: Access) -> UserRow:
    user = access.user(visitor().name)
    if user is None:
        raise Problem(422, "A token has no password: sign in as a user.")
    return user


def _checked(access: Access, given: SecretStr) -> UserRow:
    """Return the user who sends the request, if this is their password.

    A session that was left open can therefore change nothing of the account.
    """
    user = _own(access)
    check_wait(access.throttle.codes.wait_s(f"{user.name} {_WITHIN}"))
    if not is_password(given.get_secret_value(), user.password):
        access.throttle.codes.wrong(f"{user.name} {_WITHIN}")
        raise Problem(403, "That is not the password of now.")
    return user


@router.get("")
def me(access: AccessPart) -> Me:
    """Return the account that sends the request, and what it may do."""
    return me_of(access)


@router.post("/password")
def change_own_password(access: AccessPart, change: ChangePassword) -> Me:
    """Give oneself another password; all sessions of this user end, this one too."""
    user = _checked(access, change.old)
    with refusals(access):
        new = hashed(change.new.get_secret_value())

        def changed(row: UserRow) -> UserRow:
            if row.password != user.password:
                raise Problem(403, "Your password was changed meanwhile.")
            return replace(row, password=new)

        access.store.change(user.name, changed)
    return me_of(access)


@router.get("/sessions")
def own_sessions(request: Request, access: AccessPart) -> list[SessionItem]:
    """Where oneself is signed in, newest first."""
    return [each for each in sessions_of(access, request) if each.user == visitor().name]


@router.delete("/sessions/{session}")
def end_own_session(request: Request, access: AccessPart, session: str) -> list[SessionItem]:
    """Sign oneself out elsewhere. Answers with the sessions that are left."""
    if session not in {each.id for each in own_sessions(request, access)}:
        raise Problem(404, "There is no such session of yours.")
    access.sessions.end(session)
    return own_sessions(request, access)


@router.post("/second-factor", status_code=201)
def begin_second_factor(access: AccessPart, given: GivenPassword) -> SecondFactorSecret:
    """Make a secret for an authenticator app. Sign-ins ask for codes once a first was right. 409: they do already."""
    user = _checked(access, given.password)
    found = access.second_factor(user.name)
    if found is not None and found.confirmed:
        raise Problem(409, "There is a second factor already: remove it first.")
    with refusals(access):
        access.factors.begin(user.name, new_secret())
    row = access.second_factor(user.name)
    if row is None:
        raise Problem(409, "It was removed meanwhile; try again.")
    return SecondFactorSecret(secret=row.secret, qr=f"{API}/me/second-factor/qr.svg")


@router.get("/second-factor/qr.svg", response_class=Response, responses=media("image/svg+xml", etag=False))
def second_factor_qr(access: AccessPart, templates: TemplatesPart) -> Response:
    """Return the secret that waits for its first code, as an image. 404: there is none."""
    row = access.second_factor(visitor().name)
    if row is None or row.confirmed:
        raise Problem(404, "No second factor is being set up.")
    return Response(qr_code(row.secret, row.user, templates.site), media_type="image/svg+xml")


@router.post("/second-factor/confirm")
def confirm_second_factor(request: Request, access: AccessPart, given: GivenCode) -> RecoveryCodes:
    """Give a first code of the app: from now on sign-ins ask for one. One's other sessions end."""
    user = _own(access)
    check_wait(access.throttle.codes.wait_s(f"{user.name} {_WITHIN}"))
    row = access.second_factor(user.name)
    if row is None or row.confirmed:
        raise Problem(409, "No second factor is being set up.")
    step = step_of(row.secret, given.code, access.now())
    if step is None:
        access.throttle.codes.wrong(f"{user.name} {_WITHIN}")
        raise Problem(422, "That is not what the app shows now. Are the clocks of phone and box right?")
    codes = new_recovery_codes()
    with refusals(access):
        access.factors.confirm(user.name, step, [code_digest(each) for each in codes])
        for each in own_sessions(request, access):
            if not each.here:
                access.sessions.end(each.id)
    return RecoveryCodes(codes=codes)


@router.post("/second-factor/remove")
def remove_own_second_factor(access: AccessPart, given: GivenPassword) -> Me:
    """Sign in by name and password alone again. A role that must have a second factor is asked for another at once."""
    user = _checked(access, given.password)
    with refusals(access):
        access.factors.remove(user.name)
    return me_of(access)
