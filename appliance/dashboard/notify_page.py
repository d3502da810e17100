"""The pages of notifications: the targets, and the link in a message that silences a camera for a while."""

from __future__ import annotations

from starlette.responses import HTMLResponse

from appliance.dashboard.notify_api import SECRET_KEYS, NotifyPart, offer_of, report_of
from appliance.dashboard.push_api import browsers_of, may_subscribe
from appliance.dashboard.settings_api import Settings
from appliance.notify.message import SNOOZE_MINUTES
from appliance.web.auth import TemplatesPart
from appliance.web.routes import RouteList

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/notify")
def notify_page(templates: TemplatesPart, context: NotifyPart, settings: Settings) -> HTMLResponse:
    """Return the page of this browser, the targets, and what is snoozed."""
    return templates.page(
        "notify.html", here="/notify", rev=0, report=report_of(context, settings), browsers=browsers_of(context),
        may_subscribe=may_subscribe(context, settings), kinds=tuple(SECRET_KEYS),
    )  # fmt: skip


@router.get("/snooze/{token}")
def snooze_page(templates: TemplatesPart, context: NotifyPart, token: str) -> HTMLResponse:
    """Return the page that a link in a message leads to. Opening it does nothing: messengers open links, too."""
    return templates.page("snooze.html", nav=False, offer=offer_of(context, token), lengths=SNOOZE_MINUTES, token=token)
