"""`/snooze/{token}`: use the link of a message once; nobody signs in for it."""

from __future__ import annotations

from typing import Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict

from appliance.base.errors import PreconditionError
from appliance.dashboard.arming_api import ArmingPart
from appliance.dashboard.notify_api import NotifyContext, NotifyPart
from appliance.dashboard.schemas import ApiModel
from appliance.notify.snooze_links import SnoozeOffer
from appliance.store.users import AccessLog
from appliance.web.auth import address_of
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList

router = RouteList(include_in_schema=False)


class Snooze(BaseModel):
    """For how long the target is told nothing of the camera; rule_only: of that rule of it."""

    model_config = ConfigDict(extra="forbid")

    minutes: Literal[15, 60]
    rule_only: bool = False


class SnoozeDone(ApiModel):
    target: str
    camera: str
    rule: str
    until_t: float


@router.post("/snooze/{token}", response_model=SnoozeDone)
def snooze(request: Request, context: NotifyPart, arming: ArmingPart, token: str, wanted: Snooze) -> SnoozeDone:
    """Use the link, once: its target is told nothing of its camera for a while. Nobody signs in for this act."""
    offer = offer_of(context, token)
    rule = offer.rule if wanted.rule_only else ""
    until = arming.now + wanted.minutes * 60
    if offer.target not in context.targets:
        raise Problem(410, "The target of this link is no more.")
    if not context.links.use(offer):
        raise Problem(410, "This link was used already.")
    try:
        arming.pauses.snooze(offer.target, offer.camera, rule, until, f"the link to {offer.target}")
    except PreconditionError as error:
        raise Problem(410, str(error)) from None
    AccessLog(context.db).write(
        f"link to {offer.target}", address_of(request.scope), "snoozed",
        f"{offer.camera}{f', rule {rule}' if rule else ''} for {wanted.minutes} min",
    )  # fmt: skip
    return SnoozeDone(target=offer.target, camera=offer.camera, rule=rule, until_t=until)


def offer_of(context: NotifyContext, token: str) -> SnoozeOffer:
    with refused_as({PreconditionError: 404}):
        return context.links.read(token, context.db.clock.now())
