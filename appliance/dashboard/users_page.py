"""The pages of accounts and access: all users, one's own account, who looked, a link to a clip."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Depends, Request
from starlette.responses import HTMLResponse

from appliance.base.credentials import LENGTH_MIN
from appliance.dashboard.account_api import GUESSED_S, me_of, own_sessions
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import DatabasePart, PagePart, StorageRoot
from appliance.dashboard.exports_api import ExporterPart, Log, exports_of, shared_export
from appliance.dashboard.users_api import LOG_SHOWN, Filtered, sessions_of, tokens_of, users_of
from appliance.store.erasure import SpanEraser
from appliance.store.users import LOG_ROWS_MAX
from appliance.types.accounts import ROLES
from appliance.web.auth import AccessPart, TemplatesPart, address_of
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import Visitor, visitor

ACCESS_ROWS_SHOWN = 200  # on the page Who looked

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


@router.get("/access", include_in_schema=False)
def access_page(
    page: PagePart,
    log: Log,
    wanted: Filtered,
    exporter: ExporterPart,
    cameras: Cameras,
    db: DatabasePart,
    root: Annotated[StorageRoot, Depends(provided(StorageRoot))],
) -> HTMLResponse:
    """Show who looked: the access log, exports and links, and what was erased."""
    return page(
        "access.html", here="/access", log=wanted.rows(log, ACCESS_ROWS_SHOWN),
        names=[name for name in log.names() if name], cameras=sorted(cameras.configured), chosen=wanted.chosen,
        shown_max=ACCESS_ROWS_SHOWN, kept_max=LOG_ROWS_MAX, exports=exports_of(exporter, log.now),
        erasures=SpanEraser(db, root.path).receipts(),
        query=urlencode({name: value for name, value in wanted.chosen.items() if value}),
    )  # fmt: skip


@router.get("/shared/{token}", include_in_schema=False)
def shared_page(
    request: Request, templates: TemplatesPart, exporter: ExporterPart, log: Log, token: str
) -> HTMLResponse:
    """Return the page of a link: the clip, and until when the link works."""
    row = shared_export(request, exporter, token)
    exporter.store.count(row.id, "opened")
    about = f"{row.id}, made by {row.who or 'the owner'}"
    log.write("whoever has the link", address_of(request.scope), "opened a link", about, row.camera)
    return templates.page("shared.html", nav=False, row=row, clip=f"/shared/{quote(token)}/clip.mp4")
