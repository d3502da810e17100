"""Signing in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, SecretStr
from starlette.responses import HTMLResponse, JSONResponse

from appliance.dashboard.auth import COOKIE, SESSION_S, LoginThrottle, SessionCookies
from appliance.dashboard.deps import Deps
from appliance.dashboard.guard import address_of, too_many_tries
from appliance.dashboard.problems import Problem

router = APIRouter(include_in_schema=False)


class SignIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    token: SecretStr


@router.get("/login")
def login_page(desk: Deps, wanted: Annotated[str, Query(alias="next")] = "/") -> HTMLResponse:
    """The sign-in page; afterwards it leads to `next`, if that is a page of ours."""
    return desk.templates.page("login.html", next=local_path(wanted))


@router.post("/login")
async def sign_in(request: Request, given: SignIn) -> JSONResponse:
    """Take the token, give the cookie."""
    sessions: SessionCookies | None = request.app.state.sessions
    throttle: LoginThrottle = request.app.state.throttle
    if sessions is None:
        return JSONResponse({"signed_in": True})
    address = address_of(request.scope)
    wait_s = throttle.wait_s(address)
    if wait_s:
        raise too_many_tries(wait_s)
    if not sessions.is_token(given.token.get_secret_value()):
        throttle.wrong(address)
        raise Problem(401, "That is not the token of this box.", {"WWW-Authenticate": "Bearer"})
    throttle.right(address)
    answer = JSONResponse({"signed_in": True})
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, sessions.issue(), SESSION_S, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
async def sign_out() -> JSONResponse:
    """Take the cookie away."""
    answer = JSONResponse({"signed_in": False})
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def local_path(wanted: str) -> str:
    """`wanted` if it is a path on this very host, else `/`: no open redirect (`//host` is another host)."""
    elsewhere = wanted.startswith("//") or "\\" in wanted or not wanted.isprintable()
    return wanted if wanted.startswith("/") and not elsewhere else "/"
