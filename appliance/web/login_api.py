"""`/login`, `/logout`, `/language`: a session cookie for name and password or the token, one for the language."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

from fastapi import Header, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from starlette.responses import HTMLResponse, JSONResponse, Response

from appliance.base.credentials import is_password
from appliance.types.accounts import UserRow, same_name
from appliance.web import texts
from appliance.web.assets import negotiated
from appliance.web.auth import (
    COOKIE,
    Access,
    AccessPart,
    SignedIn,
    TemplatesPart,
    address_of,
    check_wait,
    signed_in,
)
from appliance.web.problems import Problem
from appliance.web.routes import RouteList
from appliance.web.sign_in_throttle import DEVICE_COOKIE, Guess

CODE_WANTED = "urn:vedette:code-wanted"  # the type of the problem: the password was right

YEAR_S = 365 * 86400  # of the cookie of a language; browsers cut it to 400 days

router = RouteList()


class SignIn(BaseModel):
    """Either a name with its password or, while there are no users, the token.

    code: of the user's app, or a recovery code, where they have a second factor.
    """

    model_config = ConfigDict(extra="forbid")
    token: SecretStr | None = None
    name: Annotated[str, Field(max_length=64), AfterValidator(same_name)] = ""
    password: SecretStr = SecretStr("")
    code: Annotated[str, Field(max_length=32)] = ""


@router.post("/login", tags=["session"], response_model=SignedIn)
async def sign_in(request: Request, access: AccessPart, given: SignIn) -> JSONResponse:
    """Take name and password (or the token), give the cookie."""
    if not access.guarded:
        return JSONResponse({"signed_in": True})
    address, user = address_of(request.scope), access.user(given.name)
    guess = access.guess(given.name, address, request.cookies.get(DEVICE_COOKIE, ""))
    by_code = access.sign_in_code(given.name, given.password.get_secret_value())
    if by_code:
        guess = replace(guess, device="unlocked")
    else:
        await _check_password(access, given, guess, user)
    if given.name and access.has_second_factor(given.name):
        await _check_code(access, given, guess)
    if by_code and not await asyncio.to_thread(access.store.take_sign_in_code, by_code):
        raise Problem(401, "Name and password do not fit.", {"WWW-Authenticate": "Bearer"})  # it was used meanwhile
    return await signed_in(request, access, given.name, user.password if user else None)


async def _check_password(access: Access, given: SignIn, guess: Guess, user: UserRow | None) -> None:
    """Or the token. Raises Problem."""
    check_wait(access.throttle.wait_s(guess))
    # Counted before it is looked at: of several at once, each counts.
    strangers_wait = access.throttle.wrong(guess)
    if await asyncio.to_thread(_is_right, access, given, user):
        access.throttle.right(guess)
        return
    what = "was refused: wrong password" if given.name else "was refused: wrong token"
    await asyncio.to_thread(access.log.write, given.name, guess.address, what)
    if strangers_wait and guess.exists:
        await asyncio.to_thread(access.log.write, given.name, guess.address, "is guessed at by strangers")
    if access.has_users:
        raise Problem(401, "Name and password do not fit.", {"WWW-Authenticate": "Bearer"})
    raise Problem(401, "That is not the token of this appliance.", {"WWW-Authenticate": "Bearer"})


async def _check_code(access: Access, given: SignIn, guess: Guess) -> None:
    """Raise Problem of the type CODE_WANTED if no code was given, or a wrong or used one."""
    if not given.code:
        raise Problem(401, "Now the code of your authenticator app, or a recovery code.", type_=CODE_WANTED)
    codes, key = access.throttle.codes, f"{guess.account} {guess.place}"
    check_wait(codes.wait_s(key))
    codes.wrong(key)
    if not await asyncio.to_thread(access.takes_code, given.name, given.code):
        await asyncio.to_thread(access.log.write, given.name, guess.address, "was refused: wrong code")
        raise Problem(401, "That code does not fit, or was used: wait for the next one.", type_=CODE_WANTED)
    codes.forgive(key)


def _is_right(access: Access, given: SignIn, user: UserRow | None) -> bool:
    if given.name:
        return is_password(given.password.get_secret_value(), user.password if user else None)
    token = given.token.get_secret_value() if given.token else ""
    return not access.has_users and access.sessions.is_token(token)


@router.post("/logout", tags=["session"], response_model=SignedIn)
async def sign_out(request: Request, access: AccessPart) -> JSONResponse:
    """End the session, and let the browser forget the cookie and what it has kept of the pictures."""
    await asyncio.to_thread(access.sessions.revoke, request.cookies.get(COOKIE, ""))
    answer = JSONResponse({"signed_in": False}, headers={"Clear-Site-Data": '"cache"'})
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/login", tags=["session"], response_class=HTMLResponse)
def login_page(
    templates: TemplatesPart, access: AccessPart, wanted: Annotated[str, Query(alias="next")] = "/"
) -> HTMLResponse:
    """Return the sign-in page; afterwards it leads to `next`, if that is a page of ours."""
    return templates.page("login.html", next=local_path(wanted), by_name=access.has_users)


def local_path(wanted: str) -> str:
    """`wanted` if it is a path on this very host, else `/`: no open redirect (`//host` is another host)."""
    elsewhere = wanted.startswith("//") or "\\" in wanted or not wanted.isprintable()
    return wanted if wanted.startswith("/") and not elsewhere else "/"


class LanguageChoice(BaseModel):
    """The language that pages and answers are wanted in; '': what the browser asks for, else the site's."""

    language: str = Field(max_length=8)


class LanguageKept(BaseModel):
    """The choice as it was kept, in a cookie of this browser."""

    language: str


@router.get("/static/texts/{language}.js", include_in_schema=False)
def script_texts(language: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
    """Return the texts of the scripts, in a language. The page requests it with the digest of its content."""
    if language not in texts.catalogues():
        raise Problem(404, "There is no such language.")
    script, digest = texts.script_of(language)
    kept = {"cache-control": f"max-age={YEAR_S}, immutable", "etag": f'"{digest}"', "content-type": "text/javascript"}
    return negotiated(script.encode(), accept_encoding, kept)


@router.post("/language", tags=["language"], response_model=LanguageKept)
def choose_language(choice: LanguageChoice) -> JSONResponse:
    """Answer this browser in a language from now on."""
    if choice.language and choice.language not in texts.catalogues():
        raise Problem(422, f"language: choose one of {', '.join(texts.catalogues())}, or nothing.")
    answer = JSONResponse({"language": choice.language})
    if choice.language:
        answer.set_cookie(texts.COOKIE, choice.language, max_age=YEAR_S, httponly=True, samesite="lax")
    else:
        answer.delete_cookie(texts.COOKIE)
    return answer
