"""`/login` and `/logout`: name and password, or the token, against a session cookie."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.responses import JSONResponse

from appliance.base.passwords import is_password
from appliance.types.accounts import UserRow
from appliance.web.problems import Problem
from appliance.web.sign_in_throttle import DEVICE_COOKIE, Guess

if TYPE_CHECKING:
    pass
from appliance.web.auth import COOKIE, Access, AccessPart, SignedIn, address_of, signed_in, too_many_tries

CODE_WANTED = "urn:vedette:code-wanted"  # the type of the problem: the password was right

router = APIRouter(tags=["session"])


class SignIn(BaseModel):
    """Either a name with its password or, while there are no users, the token.

    code: of the user's app, or a recovery code, where they have a second factor.
    """

    model_config = ConfigDict(extra="forbid")
    token: SecretStr | None = None
    name: Annotated[str, Field(max_length=64)] = ""
    password: SecretStr = SecretStr("")
    code: Annotated[str, Field(max_length=32)] = ""


@router.post("/login", response_model=SignedIn)
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
    if wait_s := access.throttle.wait_s(guess):
        raise too_many_tries(wait_s)
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
    if wait_s := codes.wait_s(key):
        raise too_many_tries(wait_s)
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


@router.post("/logout", response_model=SignedIn)
async def sign_out(request: Request, access: AccessPart) -> JSONResponse:
    """End the session, and let the browser forget the cookie and what it has kept of the pictures."""
    await asyncio.to_thread(access.sessions.revoke, request.cookies.get(COOKIE, ""))
    answer = JSONResponse({"signed_in": False}, headers={"Clear-Site-Data": '"cache"'})
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer
