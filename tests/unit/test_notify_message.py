"""What a message holds for which target: text, signatures, links, and what privacy keeps from it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock, local_weekday_minute
from appliance.base.errors import ConfigError
from appliance.base.yamlfile import loads
from appliance.config import NtfyTarget, Schedule, SiteConfig, WebhookTarget
from appliance.notify.http_sender import request_for
from appliance.notify.message import MessageBuilder, NotificationMessage
from appliance.notify.notice_policy import NoticePlanner, Recipient, notice_id
from appliance.rules.weekly_hours import armed_at
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventRow
from appliance.store.notices import NoticeStore
from appliance.types import AlertChange, Event
from tests.support.sample_rows import T0, opened, sample_escalation, sample_verdict

HOOK = {"kind": "webhook", "url": "https://ha.example/api/webhook/sesame"}


def hook(**more: Any) -> WebhookTarget:
    return WebhookTarget.model_validate(HOOK | more)


def planner(target: Any, forbids: bool = False) -> NoticePlanner:
    armed = armed_at(target.schedule, local_weekday_minute)
    return NoticePlanner("depot", {"phone": Recipient("phone", target, armed)}, lambda event: forbids)


@pytest.fixture
def message(tmp_path: Path) -> Iterator[NotificationMessage]:
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    alerts, notices = AlertStore(db), NoticeStore(db)
    target = hook()
    change = opened()
    alerts.apply(change, escalation=sample_escalation(), priority="normal", notices=planner(target).plan(change, T0))
    alerts.apply_verdict(sample_verdict(), T0 + 2)
    (item,) = notices.open("phone")
    detail = alerts.get("a1")
    assert detail is not None
    said = MessageBuilder("depot", "https://box.lan/", lambda event: False).build(
        item.row, detail, "confirmed", local=False
    )
    assert said is not None
    yield said
    db.close()


def test_the_message_holds_what_where_when_how_sure_and_a_link(message: NotificationMessage) -> None:
    assert message.title == "Confirmed: person at yard"
    assert "intruder, 80% sure" in message.text
    assert "Confirmed by the cloud. A person stands there." in message.text
    assert message.link == "https://box.lan/alerts/a1"
    doubt = replace(
        message, finding=replace(message.finding, standing="unverified"), degraded=("the cloud cannot be reached now",)
    )
    assert doubt.title == "Person at yard (unverified)"
    assert doubt.text.endswith("Note: the cloud cannot be reached now.")


def test_a_message_names_camera_and_rule_as_people_do(message: NotificationMessage) -> None:
    finding = replace(message.finding, place="Café Straßenecke", named=("Jemand am Tor",))
    named = replace(message, finding=finding)
    assert named.title == "Confirmed: person at Café Straßenecke"
    assert "Jemand am Tor, 80% sure" in named.text
    assert (named.camera, named.finding.rules) == ("yard", ("intruder",)), "programs read ids"


def test_the_builder_asks_for_the_names(tmp_path: Path) -> None:
    builder = MessageBuilder(
        "depot", "", lambda event: False, lambda camera, rule="": f"{camera} {rule}".title().strip()
    )
    fault = HealthEventRow(
        id="h1", camera="yard", kind="moved", t_start=T0, t_end=None, told_t=T0, reason="", recovery="", attempts=0,
        times=1, ended_by="", seen_t=None, rev=1,
    )  # fmt: skip
    told = builder.health(fault, local=True)
    assert told is not None
    assert told.title.endswith("at Yard")


def test_a_webhook_is_signed_as_standard_webhooks_specify(message: NotificationMessage) -> None:
    key = b"a key of some length"
    sent = request_for(hook(secret=f"whsec_{base64.b64encode(key).decode()}", authorization="Bearer x"), message, 99.9)
    said = f"{sent.headers['webhook-id']}.99.".encode() + sent.body
    digest = base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
    assert sent.headers["webhook-signature"] == f"v1,{digest}"
    assert sent.headers["authorization"] == "Bearer x"
    assert "." not in sent.headers["webhook-id"]
    plain = request_for(hook(secret="eight888"), message, 99.9)
    digest = base64.b64encode(hmac.new(b"eight888", said, hashlib.sha256).digest()).decode()
    assert plain.headers["webhook-signature"] == f"v1,{digest}"
    assert "webhook-signature" not in request_for(hook(), message, 99.9).headers


def test_the_same_message_again_is_byte_equal_and_another_has_another_id(message: NotificationMessage) -> None:
    first, again = request_for(hook(), message, 1.0), request_for(hook(), message, 2.0)
    assert first.body == again.body
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    later = request_for(
        hook(), replace(message, finding=replace(message.finding, standing="withdrawn"), update=True), 3.0
    )
    assert json.loads(later.body)["id"] == json.loads(first.body)["id"]
    assert later.headers["webhook-id"] != first.headers["webhook-id"]


def test_ntfy_replaces_what_it_showed(message: NotificationMessage) -> None:
    target = NtfyTarget(kind="ntfy", url="https://push.example", topic="t-1", token="tk_x")  # type: ignore[arg-type]
    sent = request_for(target, replace(message, severity="alert"), 1.0)
    said = json.loads(sent.body)
    assert sent.url == "https://push.example/"
    assert sent.headers["authorization"] == "Bearer tk_x"
    assert said["topic"] == "t-1"
    assert (said["priority"], said["click"]) == (5, "https://box.lan/alerts/a1")
    withdrawn = json.loads(
        request_for(target, replace(message, finding=replace(message.finding, standing="withdrawn")), 1.0).body
    )
    assert (withdrawn["priority"], withdrawn["sequence_id"]) == (2, said["sequence_id"])


def test_no_secret_is_in_a_repr() -> None:
    target = hook(secret="eight888", authorization="Bearer sesame")
    shown = repr(target) + repr(
        request_for(target, MessageBuilder("depot", "", lambda event: False).test("phone", 1.0), 1.0)
    )
    assert "sesame" not in shown
    assert "eight888" not in shown


def test_only_targets_that_are_concerned_get_a_notice() -> None:
    change = opened()
    told = planner(hook()).plan(change, T0)
    assert [(each.id, each.target, each.forbidden) for each in told] == [
        (notice_id("depot", "a1", "phone"), "phone", "")
    ]
    for other in ({"severities": ["alert"]}, {"cameras": ["gate"]}, {"rules": ["loiterer"]}, {"enabled": False}):
        assert planner(hook(**other)).plan(change, T0) == ()
    ended = AlertChange("ended", change.alert)
    assert planner(hook()).plan(ended, T0) == ()


def test_notified_at_its_hours_only() -> None:
    change = opened()
    weekday, minute = local_weekday_minute(T0)
    hour = f"{minute // 60:02d}:{minute % 60:02d}-{(minute // 60 + 1) % 24:02d}:{minute % 60:02d}"
    now = Schedule(hours=(hour,))
    other_day = Schedule(hours=(hour,), days=(("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(weekday + 3) % 7],))
    assert planner(hook(schedule=now)).plan(change, T0)
    assert planner(hook(schedule=other_day)).plan(change, T0) == ()


def test_privacy_forbids_what_leaves_and_not_what_stays() -> None:
    (kept,) = planner(hook(), forbids=True).plan(opened(), T0)
    assert "privacy" in kept.forbidden
    (local,) = planner(hook(local=True, url="http://192.168.1.5/x"), forbids=True).plan(opened(), T0)
    assert local.forbidden == ""


def test_nothing_of_what_may_not_leave_is_in_a_message_about_the_rest(tmp_path: Path) -> None:
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    alerts, change = AlertStore(db), opened()
    alerts.apply(change, escalation=None, priority="", notices=planner(hook()).plan(change, T0))
    secret = Event(
        camera="yard", rule="neighbour", kind="enter", track=8, label="dog", t=T0 + 1, score=0.99, severity="alert"
    )
    grown = replace(change.alert, rules=("intruder", "neighbour"), labels=("person", "dog"), severity="alert")
    alerts.apply(AlertChange("extended", grown, secret), escalation=None, priority="")
    (item,) = NoticeStore(db).open("phone")
    detail = alerts.get("a1")
    assert detail is not None
    composer = MessageBuilder("depot", "", lambda event: event.rule == "neighbour")
    said = composer.build(item.row, detail, "edge", local=False)
    assert said is not None
    found = said.finding
    assert (found.rules, found.labels, said.severity, found.score) == (("intruder",), ("person",), "warning", 0.8)
    here = composer.build(item.row, detail, "edge", local=True)
    assert here is not None
    assert here.finding.labels == ("person", "dog")
    assert MessageBuilder("depot", "", lambda event: True).build(item.row, detail, "edge", local=False) is None
    db.close()


SITE = """
cameras: {gate: {url: "file:x.mp4", zones: {z: [[0,0],[1,0],[1,1]]}, rules: [{name: intruder, kind: enter, zone: z}]}}
notify: {phone: {kind: webhook, url: "https://x.example/y", %s}}
"""


def test_nothing_of_what_may_not_leave_is_in_a_message_about_an_alert_that_the_disk_does_not_take() -> None:
    """Its other events are not stored, so only that of the change is known to be free."""
    secret = opened("a1", t=T0)
    free = replace(secret.event, rule="corner", label="car", t=T0 + 5, score=0.4) if secret.event else None
    merged = replace(secret.alert, rules=("intruder", "corner"), labels=("person", "car"), severity="alert", score=0.9)
    builder = MessageBuilder("depot", "", lambda event: event.rule == "intruder")
    leaves, stays = (
        builder.unstored("n", AlertChange("extended", merged, free), "the disk is full", local=local)
        for local in (False, True)
    )
    assert (leaves.finding.rules, leaves.finding.labels, leaves.finding.score) == (("corner",), ("car",), 0.4)
    assert (leaves.severity, leaves.t) == ("warning", T0 + 5)
    assert (stays.finding.rules, stays.severity, stays.t) == (("intruder", "corner"), "alert", T0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("cameras: [gat]", "no camera `gat`"),
        ("rules: [loiterer]", "no rule `loiterer`"),
        ("secret: short", "too short"),
        ('secret: "whsec_%%%"', "not base64"),
        ("secret: whsec_", "too short"),
        ("hold_s: 601", "less than or equal to 600"),
        ('authorization: "a\\nb"', "one line"),
        ("topic: x", "topic"),
    ],
)
def test_the_site_file_is_checked(wrong: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loads(SITE.replace("%s", wrong), SiteConfig)


@pytest.mark.parametrize(
    ("url", "local", "words"),
    [
        ("ftp://x.example/", False, "must begin with http"),
        ("https://user:pw@x.example/", False, "takes no user"),
        ("https://8.8.8.8/", True, "not an address of a site's own network"),
    ],
)
def test_an_address_must_be_one_of_the_web(url: str, local: bool, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hook(url=url, local=local)
