"""Turns a message into the HTTP request of an ntfy server or of a signed webhook."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, field

from appliance.base.clock import iso_utc
from appliance.config import NtfyTarget, WebhookTarget, signing_key
from appliance.notify.message import NotificationMessage, is_good_news
from appliance.types import Severity

WEBHOOK_VERSION = 1  # of the JSON; a reader that knows another refuses
_PRIORITY: dict[Severity, int] = {"info": 2, "warning": 3, "alert": 5}
_LOW_PRIORITY = 2  # ntfy: 1 to 5, 2 makes no sound
_TAGS = {"edge": "eye", "unverified": "grey_question", "confirmed": "rotating_light", "withdrawn": "white_check_mark",
         "unsure": "question", "rechecked": "eyes", "doubted": "grey_question"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `headers` and `url` may hold secrets, so they are not in the repr."""

    url: str = field(repr=False)
    body: bytes
    headers: dict[str, str] = field(repr=False)
    method: str = "POST"


def request_for(target: NtfyTarget | WebhookTarget, message: NotificationMessage, now: float) -> HttpRequest:
    """now: UTC seconds, for the signature. The same message gives the same body."""
    if isinstance(target, NtfyTarget):
        return _ntfy(target, message)
    return _webhook(target, message, now)


def _webhook(target: WebhookTarget, message: NotificationMessage, now: float) -> HttpRequest:
    """Signed as Standard Webhooks say: HMAC-SHA256 over `id.timestamp.body` (https://www.standardwebhooks.com)."""
    body = _json(webhook_document(message))
    headers = {"content-type": "application/json", "webhook-id": message.message_id, "webhook-timestamp": str(int(now))}
    if target.authorization is not None:
        headers["authorization"] = target.authorization.get_secret_value()
    if target.secret is not None:
        signed = f"{message.message_id}.{int(now)}.".encode() + body
        digest = hmac.new(signing_key(target.secret), signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return HttpRequest(target.url, body, headers)


def webhook_document(message: NotificationMessage) -> dict[str, object]:
    """Return the JSON of a webhook. Fields may be added; those that stand here stay."""
    return {
        "type": "test" if message.test else "health" if message.health else "alert",
        "version": WEBHOOK_VERSION,
        "id": message.id,
        "message_id": message.message_id,
        "update": message.update,
        "site": message.site,
        "camera": message.camera,
        "alert": message.alert,
        "severity": message.severity,
        "standing": message.standing,
        "title": message.title,
        "message": message.text,
        "reason": message.reason,
        "degraded": list(message.degraded),
        "rules": list(message.rules),
        "labels": list(message.labels),
        "score": round(message.score, 4),
        "t": message.t,
        "time": iso_utc(message.t),
        "link": message.link or None,
        "health": message.health or None,
        "over": message.over,
        "snooze": message.snooze or None,
        "picture": {"media_type": "image/jpeg", "base64": base64.b64encode(message.image).decode()}
        if message.image
        else None,
    }


def _ntfy(target: NtfyTarget, message: NotificationMessage) -> HttpRequest:
    """https://docs.ntfy.sh/publish/#publish-as-json; sequence_id: from server 2.16 on, an older one ignores it."""
    fields: dict[str, object] = {
        "topic": target.topic,
        "title": message.title,
        "message": message.text,
        "priority": _LOW_PRIORITY if is_good_news(message) or message.test else _PRIORITY[message.severity],
        "tags": [_tag(message), *message.labels],
        "sequence_id": message.id,
    }
    if message.link:
        fields["click"] = message.link
    if message.snooze:
        fields["actions"] = [
            {"action": "http", "label": f"Snooze {text}", "url": message.snooze, "method": "POST", "clear": True,
             "headers": {"Content-Type": "application/json"}, "body": json.dumps({"minutes": minutes})}
            for minutes, text in ((15, "15 min"), (60, "1 h"))
        ]  # fmt: skip
    if message.image:
        return _ntfy_with_image(target, message, fields)
    headers = {"content-type": "application/json"}
    if target.token is not None:
        headers["authorization"] = f"Bearer {target.token.get_secret_value()}"
    return HttpRequest(target.url.rstrip("/") + "/", _json(fields), headers)


def _ntfy_with_image(target: NtfyTarget, message: NotificationMessage, fields: dict[str, object]) -> HttpRequest:
    """Return a request with the image as its body and all else in headers.

    See https://docs.ntfy.sh/publish/#attach-local-file for the format.
    """
    headers = {
        "content-type": "image/jpeg",
        "x-filename": "still.jpg",
        "x-title": _header(message.title),
        "x-message": _header(message.text.replace("\n", "\\n")),
        "x-priority": str(fields["priority"]),
        "x-tags": _header(",".join([_tag(message), *message.labels])),
        "x-sequence-id": message.id,
    }
    if message.link:
        headers["x-click"] = message.link
    if message.snooze:
        headers["x-actions"] = json.dumps(fields["actions"])
    if target.token is not None:
        headers["authorization"] = f"Bearer {target.token.get_secret_value()}"
    return HttpRequest(f"{target.url.rstrip('/')}/{target.topic}", message.image, headers, "PUT")


def _header(text: str) -> str:
    """Text that is not ASCII as RFC 2047 says, which ntfy reads."""
    if text.isascii() and text.isprintable():
        return text
    return f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def _tag(message: NotificationMessage) -> str:
    if message.health:
        return "white_check_mark" if message.over else "warning"
    return _TAGS[message.standing]


def _json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
