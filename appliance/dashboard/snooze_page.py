"""The page that a link in a message opens."""

from __future__ import annotations

from starlette.responses import HTMLResponse

from appliance.dashboard.notify_api import Context
from appliance.dashboard.snooze_api import offer_of
from appliance.notify.snooze_links import SNOOZE_MINUTES
from appliance.web.auth import TemplatesPart
from appliance.web.route_list import RouteList

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/snooze/{token}")
def snooze_page(templates: TemplatesPart, context: Context, token: str) -> HTMLResponse:
    """Return the page that a link in a message leads to. Opening it does nothing: messengers open links, too."""
    return templates.page("snooze.html", nav=False, offer=offer_of(context, token), lengths=SNOOZE_MINUTES, token=token)
