"""The page of users, sessions, tokens and the access log."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from appliance.base.passwords import LENGTH_MIN
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.users_api import LOG_SHOWN, logged, sessions_of, tokens_of, users_of
from appliance.types.accounts import ROLES
from appliance.web.auth import AccessPart, TemplatesPart
from appliance.web.visitor import Visitor, visitor

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/users")
def users_page(request: Request, templates: TemplatesPart, access: AccessPart, cameras: Cameras) -> HTMLResponse:
    """Users, who is signed in, the tokens of programs, and the access log."""
    who: Visitor = visitor()
    return templates.page(
        "users.html", here="/users", users=users_of(access), sessions=sessions_of(access, request),
        tokens=tokens_of(access), log=[logged(row) for row in access.log.newest(LOG_SHOWN)],
        roles=ROLES, cameras=sorted(cameras.configured), me=who.name, length_min=LENGTH_MIN,
        log_shown=LOG_SHOWN,
    )  # fmt: skip
