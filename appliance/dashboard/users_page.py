"""The pages of accounts: all users, one's own account, and the first run, which makes the first user."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from appliance.base.passwords import LENGTH_MIN
from appliance.dashboard.account_api import GUESSED_S, me_of, own_sessions
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.settings_api import Settings
from appliance.dashboard.users_api import LOG_SHOWN, sessions_of, tokens_of, users_of
from appliance.types.accounts import ROLES
from appliance.web.auth import AccessPart, TemplatesPart
from appliance.web.route_list import RouteList
from appliance.web.visitor import Visitor, visitor

router = RouteList(default_response_class=HTMLResponse)


@router.get("/users", include_in_schema=False)
def users_page(request: Request, templates: TemplatesPart, access: AccessPart, cameras: Cameras) -> HTMLResponse:
    """Users, who is signed in, the tokens of programs, and the access log."""
    who: Visitor = visitor()
    return templates.page(
        "users.html", here="/users", users=users_of(access), sessions=sessions_of(access, request),
        tokens=tokens_of(access), log=access.log.newest(LOG_SHOWN),
        roles=ROLES, cameras=sorted(cameras.configured), me=who.name, length_min=LENGTH_MIN,
        log_shown=LOG_SHOWN,
    )  # fmt: skip


@router.get("/account", include_in_schema=False)
def account_page(request: Request, templates: TemplatesPart, access: AccessPart) -> HTMLResponse:
    """One's own password, sessions and second factor."""
    user = access.user(visitor().name)
    guesses, addresses = access.log.refused(user.name, access.now() - GUESSED_S) if user else (0, 0)
    return templates.page(
        "account.html", here="/account", me=me_of(access), has_password=user is not None, length_min=LENGTH_MIN,
        guesses=guesses, addresses=addresses,
        sessions=own_sessions(request, access) if user else [],
    )  # fmt: skip


@router.get("/setup", tags=["session"])
def setup_page(templates: TemplatesPart, access: AccessPart, settings: Settings) -> Response:
    """Return the page of the first run; once there is a user, redirect to the start page."""
    if not access.in_setup:
        return RedirectResponse("/", 303)
    site = settings.service.running.config.site.shown
    return templates.page("setup.html", site_name=site, length_min=LENGTH_MIN)
