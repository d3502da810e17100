"""The sign-in page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse

if TYPE_CHECKING:
    pass
from appliance.web.auth import AccessPart, TemplatesPart

router = APIRouter(tags=["session"])


@router.get("/login", response_class=HTMLResponse)
def login_page(
    templates: TemplatesPart, access: AccessPart, wanted: Annotated[str, Query(alias="next")] = "/"
) -> HTMLResponse:
    """Return the sign-in page; afterwards it leads to `next`, if that is a page of ours."""
    return templates.page("login.html", next=local_path(wanted), by_name=access.has_users)


def local_path(wanted: str) -> str:
    """`wanted` if it is a path on this very host, else `/`: no open redirect (`//host` is another host)."""
    elsewhere = wanted.startswith("//") or "\\" in wanted or not wanted.isprintable()
    return wanted if wanted.startswith("/") and not elsewhere else "/"
