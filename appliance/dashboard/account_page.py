"""The page of one's own account: password, sessions, second factor."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from appliance.base.passwords import LENGTH_MIN
from appliance.dashboard.account_api import GUESSED_S, me_of, own_sessions
from appliance.web.auth import AccessPart, TemplatesPart
from appliance.web.visitor import visitor

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/account")
def account_page(request: Request, templates: TemplatesPart, access: AccessPart) -> HTMLResponse:
    """One's own password, sessions and second factor."""
    user = access.user(visitor().name)
    guesses, addresses = access.log.refused(user.name, access.now() - GUESSED_S) if user else (0, 0)
    return templates.page(
        "account.html", here="/account", me=me_of(access), has_password=user is not None, length_min=LENGTH_MIN,
        guesses=guesses, addresses=addresses,
        sessions=own_sessions(request, access) if user else [],
    )  # fmt: skip
