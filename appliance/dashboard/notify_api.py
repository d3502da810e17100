"""`/api/v1/notify`: who is notified and how, tried and changed; `/snooze/{token}`: the links in messages.

Nobody signs in for such a link, which is for one use.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from pydantic import Field, SecretStr

from appliance.base.errors import PreconditionError, UsageError
from appliance.config import DashboardSections, PushTarget, Target
from appliance.dashboard.arming_api import ArmingPart
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.schemas import API, ApiModel, Flag, RequestModel
from appliance.dashboard.settings_api import Settings, settings_problems, user_of
from appliance.notify.message import PushMeans, SendResult, SnoozeLinks, SnoozeOffer
from appliance.settings.site_editor import SiteText
from appliance.settings.yaml_edit import REMOVED, SiteChange
from appliance.store.audit import AuditRow, AuditStore
from appliance.store.database import Database
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.users import AccessLog
from appliance.types import HEALTH_TITLES, SEVERITIES, HealthKind, Severity
from appliance.web.auth import address_of
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList, provided

router = RouteList(prefix=API, tags=["notifications"])
snooze_router = RouteList(include_in_schema=False)

# The keys of a target's section that hold a secret, by kind; all of it goes to the secrets file.
SECRET_KEYS: dict[str, tuple[str, ...]] = {
    "ntfy": ("url", "topic", "token"),
    "webhook": ("url", "secret", "authorization"),
    "apprise": ("url",),
    "push": (),
}
_SPAN = r"([01]\d|2[0-3]):[0-5]\d-(([01]\d|2[0-3]):[0-5]\d|24:00)"
Hours = Annotated[str, Field(pattern=rf"^({_SPAN})?$")]
Secret = Annotated[SecretStr, Field(max_length=2000)]
_STATUS_FIELDS = ("failing_since", "error", "waiting", "told", "quiet", "failures")


class NotifyContext:
    """The parts that the routes of this page use. Owner: the dashboard, made anew with each state of the site file."""

    def __init__(self, config: DashboardSections, probes: CoreProbes, db: Database, meter: Meter) -> None:
        self.config = config
        self.targets = config.notify
        self.probes = probes
        self.db = db
        self.meter = meter

    @property
    def push(self) -> PushMeans:
        """Raises Problem."""
        if self.probes.push is None or not self.push_target:
            raise Problem(404, "This site notifies no browsers: add a target of kind push.")
        return self.probes.push

    @property
    def push_target(self) -> str:
        """The name of the first one that is enabled; '': there is none."""
        return next((name for name, each in self.targets.items() if isinstance(each, PushTarget) and each.enabled), "")

    @property
    def links(self) -> SnoozeLinks:
        """Raises Problem."""
        if self.probes.snooze_links is None:
            raise Problem(404, "There is no such page.")
        return self.probes.snooze_links

    def account(self, name: str, target: Target, result: SendResult) -> None:
        """Account for a test message, which leaves the site like any other. Raise StoreError."""
        if target.local:
            self.meter.add("", Metric(MetricName.NOTICE_LOCAL_BYTES), result.sent)
            return
        for purpose in ("", "notice"):
            self.meter.add("", Metric(MetricName.UPLINK_BYTES, purpose), result.sent)
        if result.ok:
            AuditStore(self.db).write(
                AuditRow(
                    t=self.db.clock.now(), camera="", escalation="", kind="notice", bytes=len(result.payload),
                    sha256=sha256(result.payload).hexdigest(), why=f"test message to {name}",
                )
            )  # fmt: skip


NotifyPart = Annotated[NotifyContext, Depends(provided(NotifyContext))]


class TargetItem(ApiModel):
    """A target, without its secrets. host: of its address, for people; waiting … failures: since the start."""

    name: str
    kind: str
    host: str
    enabled: bool
    local: bool
    picture: bool
    severities: tuple[Severity, ...]
    cameras: tuple[str, ...]
    rules: tuple[str, ...]
    health: tuple[HealthKind, ...]
    quiet_hours: str
    urgent: tuple[Severity, ...]
    hold_s: float
    repeat_s: float
    failing_since: float | None = None
    error: str = ""
    waiting: int = 0
    told: int = 0
    quiet: int = 0
    failures: int = 0


_NO_STATUS = {each: TargetItem.model_fields[each].default for each in _STATUS_FIELDS}


class TargetList(ApiModel):
    """digest: of the site file, to be sent as `base` with a change; '': it cannot be changed here."""

    targets: list[TargetItem]
    digest: str


class SaveTarget(RequestModel):
    """A target's settings.

    A secret that is left empty stays as it is: url, topic, token, secret, authorization. Keys of the site file that are
    not here stay as well, and so does what the file says in more words (days of the quiet hours, or a choice of faults)
    where what is here did not change.
    """

    base: Annotated[str, Field(max_length=64)]
    kind: Literal["ntfy", "webhook", "apprise", "push"]
    url: Secret = SecretStr("")
    topic: Secret = SecretStr("")
    token: Secret = SecretStr("")
    secret: Secret = SecretStr("")
    authorization: Secret = SecretStr("")
    enabled: Flag = True
    local: Flag = False
    picture: Flag = False
    severity: Severity = "warning"
    health: Flag | None = None
    quiet_hours: Annotated[str, Field(max_length=500, pattern=rf"^({_SPAN}(, {_SPAN})*)?$")] = ""
    urgent: Flag = False


class TestOutcome(ApiModel):
    """The outcome of a test message; message: a sentence for a person."""

    ok: bool
    status: int | None
    seconds: float
    message: str


def _items(context: NotifyContext) -> list[TargetItem]:
    statuses = {each.name: each for each in context.probes.targets()}
    found = []
    for name, target in context.targets.items():
        status = statuses.get(name)
        facts = {each: getattr(status, each) for each in _STATUS_FIELDS} if status else _NO_STATUS
        found.append(TargetItem.of_row(target, name=name, quiet_hours=_quiet_hours(target), **facts))
    return found


def _quiet_hours(target: Target) -> str:
    return ", ".join(target.quiet_hours.hours) if target.quiet_hours else ""


def report_of(context: NotifyContext, settings: Settings) -> TargetList:
    return TargetList(targets=_items(context), digest=settings.service.running.digest if settings.is_editable else "")


@router.get("/notify")
def list_targets(context: NotifyPart, settings: Settings) -> TargetList:
    """Return the notification targets and the state of each."""
    return report_of(context, settings)


@router.post("/notify/{target}")
def save_target(request: Request, settings: Settings, target: str, wanted: SaveTarget) -> TargetList:
    """Add a target or change one; its secrets go to the secrets file. Answers with all."""
    service = settings.service
    known = service.running.config.notify.get(target)
    if known is not None and known.kind != wanted.kind:
        raise Problem(422, "A target keeps its kind: remove it, and add another.")
    section, kept = _section(service.running, target, wanted, known)
    with settings_problems():
        changes = (
            [SiteChange(("notify", target), {k: v for k, v in section.items() if v is not REMOVED})]
            if known is None
            else [SiteChange(("notify", target, key), value) for key, value in section.items()]
        )
        service.change(changes, wanted.base, user_of(request), f"target {target}", kept)
    return report_of(request.app.state.parts[NotifyContext], settings)


@router.delete("/notify/{target}")
def remove_target(request: Request, settings: Settings, target: str) -> TargetList:
    """Take a target out of the site file. Answers with those that are left."""
    service = settings.service
    if target not in service.running.config.notify:
        raise Problem(404, "There is no such target.")
    with settings_problems():
        change = [SiteChange(("notify", target), REMOVED)]
        service.change(change, service.running.digest, user_of(request), f"target {target} removed")
    return report_of(request.app.state.parts[NotifyContext], settings)


@router.post("/notify/{target}/test")
def test_target(context: NotifyPart, target: str) -> TestOutcome:
    """Send a test message, and say what came back."""
    if target not in context.targets:
        raise Problem(404, "There is no such target.")
    return tested(context, target, context.probes.push)


def tested(context: NotifyContext, name: str, push: PushMeans | None) -> TestOutcome:
    """Send a test message to a target, and account for it. Raise Problem."""
    from appliance.notify.notifier import send_test  # it brings an HTTP client: only where somebody asks

    site, public_url = context.config.decisions.site.name, context.config.dashboard.public_url
    chosen = context.targets[name]
    try:
        result = asyncio.run(send_test(site, public_url, name, chosen, push))
    except UsageError as error:
        raise Problem(422, str(error)) from None
    context.account(name, chosen, result)
    text = f"{chosen.host} took it in {result.seconds:.1f} s." if result.ok else f"It did not arrive: {result.error}."
    return TestOutcome(ok=result.ok, status=result.status, seconds=round(result.seconds, 3), message=text)


def _section(
    written: SiteText, name: str, wanted: SaveTarget, known: Target | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of the site file that change, and the secrets beside it. known: the target as it is in force."""
    keys = [key.upper() for key in SECRET_KEYS[wanted.kind]]
    stem, kept = written.free_stem(f"NOTIFY_{name.upper().replace('-', '_')}", keys, f"notify.{name}"), {}
    at = SEVERITIES.index(wanted.severity)
    section: dict[str, Any] = {} if known else {"kind": wanted.kind}
    for key in SECRET_KEYS[wanted.kind]:
        given = getattr(wanted, key).get_secret_value().strip()
        if given:
            kept[f"{stem}_{key.upper()}"] = given
            section[key] = f"${{{stem}_{key.upper()}}}"
    section |= {
        "enabled": wanted.enabled,
        "severities": list(SEVERITIES[at:]),
        "quiet_hours": {"hours": wanted.quiet_hours.split(", ")} if wanted.quiet_hours else REMOVED,
        "urgent": ["alert"] if wanted.urgent else REMOVED,
    }
    if wanted.health is not None:
        section["health"] = list(HEALTH_TITLES) if wanted.health else []
    if wanted.kind != "push":
        section["picture"] = wanted.picture
    if wanted.kind in {"ntfy", "webhook"}:
        section["local"] = wanted.local
    if known is None:
        return section, kept
    stays = {
        "severities": known.severities[0] == wanted.severity, "quiet_hours": _quiet_hours(known) == wanted.quiet_hours,
        "urgent": bool(known.urgent) == wanted.urgent, "health": bool(known.health) == wanted.health,
    }  # fmt: skip
    return {key: value for key, value in section.items() if not stays.get(key)}, kept


class Snooze(RequestModel):
    """For how long the target is told nothing of the camera; rule_only: of that rule of it."""

    minutes: Literal[15, 60]
    rule_only: Flag = False


class SnoozeDone(ApiModel):
    target: str
    camera: str
    rule: str
    until_t: float


@snooze_router.post("/snooze/{token}", response_model=SnoozeDone)
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
