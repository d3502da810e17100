"""Reads a delivered question, and says of one that cannot be read whose it was."""

from __future__ import annotations

import json
import re

from appliance.wire import STEPS_MAX, Escalation, WireError, question_message_id
from cloud_worker.pull import Delivery

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def read(delivery: Delivery) -> Escalation:
    """Parse, and check that the message stands where its site may write. Raises WireError."""
    escalation: Escalation = Escalation.from_json(delivery.data)
    if delivery.subject.split(".")[1] != escalation.site:
        raise WireError(f"site: a message on {delivery.subject} says it is from another site")
    return escalation


def salvage(delivery: Delivery) -> Escalation | None:
    """Of a question that is not valid, as much as a verdict needs, if that much can be believed.

    Its id must be the one under which the site published it; without that nobody waits for the verdict.
    """
    site = delivery.subject.split(".")[1]
    try:
        found = json.loads(delivery.data)
        name, alert, step = found["id"], found.get("alert", ""), found.get("step", 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    believed = isinstance(name, str) and _NAME.match(name) and found.get("site") == site
    if not believed or step not in range(STEPS_MAX):
        return None
    if delivery.headers.get("Nats-Msg-Id") != question_message_id(site, name, step):
        return None
    return Escalation(
        id=name,
        site=site,
        camera="",
        alert=alert if isinstance(alert, str) else "",
        rule="",
        kind="",
        label="",
        severity="info",
        t=0.0,
        created_t=0.0,
        step=step,
    )
