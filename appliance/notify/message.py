"""Builds the messages that a target gets about alerts and health events, and the port by which one is sent.

A message may have a link by which its target is not told of a camera or rule for a while: signed, for one use.

`VapidKey` and `PushMeans` are the sender and the receivers of web push messages (RFC 8292, VAPID): the appliance's key
and the subscribed browsers. They are here because `push_sender` loads the package cryptography.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import quote, urlsplit

from appliance.base.credentials import own_key
from appliance.base.errors import MissingDependency, PreconditionError, UsageError
from appliance.store.alert_rows import Standing
from appliance.store.alerts import AlertDetail
from appliance.store.health_events import HealthEventRow
from appliance.store.notices import NoticeRow
from appliance.store.paths import KEYS
from appliance.store.push_subscriptions import PushSubscriptionStore, UsedLinkStore
from appliance.types import HEALTH_TITLES, SEVERITIES, AlertChange, Event, HealthKind, Severity

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

logger = logging.getLogger(__name__)

PUSH_TOKEN_S = 12 * 3600  # RFC 8292 allows 24 hours
_PUSH_KEY_FILE = f"{KEYS}/push.pem"
_REASON_CHARS_MAX = 400  # a phone shows some 200; ntfy takes 4096 bytes
_STANDING_TEXT: dict[Standing, str] = {
    "edge": "Seen by this appliance; the cloud was not asked.",
    "unverified": "Unverified: the cloud has not spoken about it.",
    "confirmed": "Confirmed by the cloud.",
    "rechecked": "Rechecked: a detector found it again; nobody has confirmed it.",
    "doubted": "Doubted: it was rejected, but not surely enough to withhold it from you.",
    "withdrawn": "Withdrawn: the cloud says it was nothing.",
    "unsure": "The cloud is not sure.",
}


Shown = Callable[..., str]
LINK_S = 12 * 3600.0  # from the alert on
SNOOZE_MINUTES = (15, 60)  # a delivery, and an hour in the garden
TOKEN_CHARS_MAX = 600  # a camera's and a rule's name of 64 characters each, encoded, with the signature
_SNOOZE_KEY_FILE = f"{KEYS}/snooze.key"
_SIGNATURE_BYTES = 18  # 144 bits of an HMAC: nobody guesses it within its life


@dataclass(frozen=True, slots=True)
class AlertFinding:
    """The part of a message about its alert. The defaults are those of no alert.

    score: of the surest event, 0..1. named, place: the rules and the camera by their names for people; '': none.
    """

    standing: Standing = "edge"
    rules: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    score: float = 0.0
    named: tuple[str, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationMessage:
    """One message about one alert, or one health event.

    Attributes:
        id: of the notice, the same in all messages about an alert to a target.
        t: when the alert began, UTC seconds.
        reason: why the cloud or the re-check decided so, or ''.
        degraded: what is wrong with the appliance, the camera or the cloud, one sentence each.
        link: the alert's page, or ''.
        update: it replaces an earlier message.
        health: the kind of a health event that this is about, whose `reason` is given; "": it is about an alert.
        over: that event has ended.
        snooze: a link by which the target is told nothing of this for a while, or ''.
        image: the still, a JPEG; empty: there is none, or it may not go.
    """

    id: str
    alert: str = ""
    site: str
    camera: str = ""
    severity: Severity
    finding: AlertFinding = AlertFinding()
    t: float
    reason: str = ""
    degraded: tuple[str, ...] = ()
    link: str = ""
    update: bool = False
    test: bool = False
    health: HealthKind | Literal[""] = ""
    over: bool = False
    snooze: str = ""
    image: bytes = field(default=b"", repr=False)

    @property
    def message_id(self) -> str:
        """Identify the news: the same when it is sent again, also if rules or faults were added to it meanwhile."""
        if self.health:
            return f"{self.id}-{'over' if self.over else 'lasts'}"
        return f"{self.id}-{self.finding.standing}-{self.severity}"

    @property
    def title(self) -> str:
        if self.test:
            return f"Test from {self.site}"
        if self.health:
            title = f"{HEALTH_TITLES[self.health]} at {self.finding.place or self.camera or 'the appliance'}"
            return f"Over: {title}" if self.over else title
        what, standing = (
            f"{' and '.join(self.finding.labels) or 'something'} at {self.finding.place or self.camera}",
            self.finding.standing,
        )
        if standing in {"confirmed", "withdrawn"}:
            return f"{standing.capitalize()}: {what}"
        doubt = "" if standing == "edge" else f" ({standing})"
        return what[:1].upper() + what[1:] + doubt

    @property
    def text(self) -> str:
        if self.test:
            return "Vedette can reach you. This is what an alert of this site will look like."
        if self.health:
            return f"{self.reason[:1].upper()}{self.reason[1:]}.\n{self.site}"
        when, found = datetime.fromtimestamp(self.t).astimezone().strftime("%H:%M:%S"), self.finding
        lines = [f"{', '.join(found.named or found.rules)}, {found.score:.0%} sure, {when}, {self.site}"]
        lines.append(f"{_STANDING_TEXT[found.standing]}{' ' + self.reason if self.reason else ''}")
        lines += [f"Note: {each}." for each in self.degraded]
        return "\n".join(lines)


def is_good_news(message: NotificationMessage) -> bool:
    """Return True if an alert is withdrawn, or a fault is over: nobody need be woken for it."""
    return message.finding.standing == "withdrawn" or message.over


class MessageBuilder:
    """Builds messages from what the store knows. Holds no state."""

    def __init__(
        self, site: str, public_url: str, forbids: Callable[[Event], bool], shown: Shown = lambda camera, rule="": ""
    ) -> None:
        """forbids: whether nothing about an event may leave the site; a message that leaves never mentions it.

        shown: returns the name for people of a camera, or of one of its rules.
        """
        self._shown = shown
        self._site = site
        self._base = public_url.rstrip("/")
        self._forbids = forbids

    def build(
        self, row: NoticeRow, detail: AlertDetail, standing: Standing, *, local: bool
    ) -> NotificationMessage | None:
        """None: privacy forbids any message. `degraded` is left to the caller. local: the target is on the site."""
        alert = detail.alert
        events = detail.events if local else [event for event in detail.events if not self._forbids(event)]
        if not events:
            return None
        complete = len(events) == len(detail.events)
        verdict = detail.verdict if standing != "unverified" else None
        reason = "" if verdict is None or verdict.body.provisional else verdict.body.reason[:_REASON_CHARS_MAX]
        return NotificationMessage(
            id=row.id,
            alert=alert.id,
            site=self._site,
            camera=alert.camera,
            severity=alert.severity if complete else max((event.severity for event in events), key=SEVERITIES.index),
            finding=AlertFinding(
                standing,
                _unique(event.rule for event in events),
                _unique(event.label for event in events),
                max(event.score for event in events),
                tuple(filter(None, _unique(self._shown(alert.camera, event.rule) for event in events))),
                self._shown(alert.camera),
            ),
            t=min(event.t for event in events),
            reason=reason or (_recheck_reason(detail) if complete else ""),
            link=self.link(alert.id),
            update=row.messages > 0 or standing == "withdrawn",
        )

    def unstored(self, notice: str, change: AlertChange, why: str, *, local: bool) -> NotificationMessage:
        """About an alert that cannot be stored. why: the reason, for a person.

        A message that leaves mentions the event of this change alone: others of the alert may be forbidden to leave.
        """
        alert, event = change.alert, change.event
        if event is not None and not local:
            alert = replace(
                alert, rules=(event.rule,), labels=(event.label,), score=event.score, severity=event.severity,
                t_start=event.t,
            )  # fmt: skip
        return NotificationMessage(
            id=notice,
            alert=alert.id,
            site=self._site,
            camera=alert.camera,
            severity=alert.severity,
            finding=AlertFinding("edge", alert.rules, alert.labels, alert.score, place=self._shown(alert.camera)),
            t=alert.t_start,
            degraded=(why,),
        )

    def health(self, event: HealthEventRow, *, local: bool) -> NotificationMessage | None:
        """About a fault of a camera or of the appliance. None: privacy forbids any message about this camera."""
        if event.camera and not local and self._forbids(_anything_at(event)):
            return None
        page = f"/cameras/{quote(event.camera, safe='')}" if event.camera else "/"
        return NotificationMessage(
            id=event.id,
            site=self._site,
            camera=event.camera,
            severity="warning",
            finding=AlertFinding(place=self._shown(event.camera) if event.camera else ""),
            t=event.t_start,
            reason=event.reason[:_REASON_CHARS_MAX],
            link=f"{self._base}{page}" if self._base else "",
            update=event.t_end is not None,
            health=event.kind,
            over=event.t_end is not None,
        )

    def test(self, target: str, now: float) -> NotificationMessage:
        """For `vedette notify test`."""
        return NotificationMessage(
            id=f"test-{target}",
            site=self._site,
            severity="info",
            t=now,
            link=f"{self._base}/" if self._base else "",
            test=True,
        )

    def link(self, alert: str) -> str:
        return f"{self._base}/alerts/{quote(alert, safe='')}" if self._base else ""


def _anything_at(event: HealthEventRow) -> Event:
    """Return an event of the camera at that time, in no zone.

    If such an event is forbidden, the whole camera is.
    """
    return Event(camera=event.camera, rule="", kind="enter", track=0, label="", t=event.t_start)


def _recheck_reason(detail: AlertDetail) -> str:
    """Return the reason of the appliance's own re-check, as long as the cloud gave no verdict."""
    recheck = detail.recheck
    if detail.row.judged.verdict is not None or recheck is None or recheck.verdict is None:
        return ""
    return recheck.verdict.reason[:_REASON_CHARS_MAX]


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """The result of one attempt to send.

    Attributes:
        ok: the target took the message.
        status: the HTTP status, where there was one.
        refused: the target will never take this very message.
        later: it is refused because nobody wants it at this hour, so it may be taken later.
        maybe: it may have arrived although nobody confirmed it.
        error: one sentence without secrets; empty when ok.
        after_s: seconds after which the target asked to be tried again.
        payload: what was sent, for the audit; without secrets of the address or headers.
        sent: bytes put on the wire, as an Ethernet interface counts them, never too few.
        seconds: from the beginning of the attempt to its end.
    """

    ok: bool
    status: int | None = None
    refused: bool = False
    later: bool = False
    maybe: bool = False
    error: str = ""
    after_s: float | None = None
    payload: bytes = b""
    sent: int = 0
    seconds: float = 0.0


class MessageSender(Protocol):
    """The way to one target: HTTP (http_sender) or apprise (apprise_sender). Owner: one task."""

    async def send(self, message: NotificationMessage) -> SendResult:
        """Send one message. Never raises for what the target does."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SnoozeOffer:
    """The right that a link gives: to silence `target` about a camera for a while.

    It covers this camera, or one rule of it.
    """

    id: str
    target: str
    camera: str
    rule: str
    expires_t: float
    used: bool = False


class SnoozeLinks:
    """Makes links and reads them. Any thread. State: the key, made at first use.

    The signature is over what the link allows, so nobody can ask for more than a message offered; who has the message
    may use it once, which is all that it is good for.
    """

    def __init__(self, root: Path, public_url: str, used: UsedLinkStore) -> None:
        """root: the storage folder. public_url '': no links are made."""
        self._path = root / _SNOOZE_KEY_FILE
        self._base = public_url.rstrip("/")
        self._used = used
        self._key = b""

    def link(self, target: str, message: NotificationMessage) -> str:
        """For an alert's message; '': nobody could open it. The same message gives the same link.

        A key that cannot be read or made, on a full disk say, costs the link and not the message.
        """
        if not self._base or not message.alert or message.test:
            return ""
        rule = message.finding.rules[0] if len(message.finding.rules) == 1 else ""
        try:
            token = self._token(target, message.camera, rule, message.id, message.t + LINK_S)
        except MissingDependency as error:
            logger.warning("a message to %s goes without a link to snooze: %s", target, error)
            return ""
        return f"{self._base}/snooze/{token}"

    def read(self, token: str, now: float) -> SnoozeOffer:
        """Read a token; raise PreconditionError if it was not made here, or is too old."""
        head, _, signature = token[:TOKEN_CHARS_MAX].partition(".")
        try:
            given = _decoded(signature)
            body = _decoded(head)
        except (binascii.Error, ValueError):
            raise PreconditionError("this link is not whole") from None
        if not hmac.compare_digest(given, self._signature(head)):
            raise PreconditionError("this link belongs to another appliance")
        target, camera, rule, message_id, expires_t = json.loads(body)
        if now > expires_t:
            raise PreconditionError("this link is too old")
        key = hashlib.sha256(f"{message_id}|{target}".encode()).hexdigest()[:32]
        return SnoozeOffer(key, target, camera, rule, expires_t, self._used.is_used(key))

    def use(self, offer: SnoozeOffer) -> bool:
        """Use an offer; return False if it was used before. Raise StoreError."""
        return self._used.use(offer.id, offer.expires_t)

    def _token(self, target: str, camera: str, rule: str, message_id: str, expires_t: float) -> str:
        body = json.dumps([target, camera, rule, message_id, round(expires_t)], separators=(",", ":")).encode()
        head = encode(body)
        return f"{head}.{encode(self._signature(head))}"

    def _signature(self, head: str) -> bytes:
        self._key = self._key or own_key(self._path, lambda: secrets.token_bytes(32))
        return hmac.new(self._key, f"snooze|{head}".encode(), hashlib.sha256).digest()[:_SIGNATURE_BYTES]


class VapidKey:
    """The key by which push services know this appliance. State: the key, made at first use. Any thread."""

    def __init__(self, root: Path) -> None:
        """root: the storage folder."""
        self._path = root / _PUSH_KEY_FILE
        self._key: ec.EllipticCurvePrivateKey | None = None

    @property
    def public(self) -> str:
        """As browsers want it (`applicationServerKey`). Raises MissingDependency."""
        from appliance.notify.push_sender import point

        return encode(point(self._private().public_key()))

    def authorization(self, endpoint: str, contact: str, now: float) -> str:
        """Return the header of a message to `endpoint`.

        contact: an https: or mailto: address of the sender.
        """
        from appliance.notify.push_sender import sign

        parts = urlsplit(endpoint)
        claims = {"aud": f"{parts.scheme}://{parts.netloc}", "exp": int(now) + PUSH_TOKEN_S, "sub": contact}
        parts_json = [json.dumps(part, separators=(",", ":")) for part in ({"typ": "JWT", "alg": "ES256"}, claims)]
        signed = ".".join(encode(part.encode()) for part in parts_json)
        return f"vapid t={signed}.{encode(sign(self._private(), signed.encode()))}, k={self.public}"

    def _private(self) -> ec.EllipticCurvePrivateKey:
        if self._key is None:
            from appliance.notify.push_sender import load_key, new_key

            self._key = load_key(own_key(self._path, new_key))
            if self._key is None:
                raise UsageError(f"{self._path} is no key for web push: delete it, and subscribe anew")
        return self._key


@dataclass(frozen=True, slots=True)
class PushMeans:
    """The parts that push targets share.

    sees: true if a user may see a camera. contact: the sender's address, for push services. only: the id of the one
    browser that is tried; '': all are sent to. in_hours: whether hours such as `22:00-06:00` cover a time.
    """

    key: VapidKey
    subscriptions: PushSubscriptionStore
    sees: Callable[[str, str], bool]
    contact: str
    only: str = ""
    in_hours: Callable[[str, float], bool] = lambda hours, t: False


def encode(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
