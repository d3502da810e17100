"""A picture with a message, quiet hours, snoozes: what goes with a message, what waits, and what is told at all."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from appliance.base.clock import ManualClock, local_weekday_minute
from appliance.config import AppriseTarget, CameraConfig, NtfyTarget, SiteConfig
from appliance.evidence.privacy import PrivacyRules, ShareableStills
from appliance.media.recording_reader import READ_DIRECTLY
from appliance.notify.apprise_sender import AppriseSender
from appliance.notify.delivery import STILL_WAIT_S, TargetSender, UnstoredAlert
from appliance.notify.http_sender import request_for
from appliance.notify.message import AlertFinding, NotificationMessage, SendResult
from appliance.notify.notice_policy import PUT_OFF_S
from appliance.rules.weekly_hours import armed_at
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertDetail
from appliance.store.audit import AuditStore
from appliance.store.boxes import BoxStore
from appliance.types import AlertChange, HealthEvent
from tests.servers.receiver import Receiver
from tests.support.notification_site import NotifyingSite, hook, notifying
from tests.support.sample_rows import T0, best, opened, sample_frame
from tests.support.waiting import until
from tests.unit.test_notify_delivery import ScriptedSender, go

JPEG = b"\xff\xd8 a still \xff\xd9"
MESSAGE = NotificationMessage(
    id="n1", alert="a1", site="depot", camera="gate", severity="alert",
    finding=AlertFinding("edge", ("intruder",), ("person",), 0.9),
    t=T0, link="https://cams.example/alerts/a1",
    snooze="https://cams.example/snooze/x.y", image=JPEG,
)  # fmt: skip


class StillOf:
    """What the appliance says of the still: first nothing, then `data`."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def __call__(self, detail: AlertDetail, local: bool) -> bytes | None:
        return self.data


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., NotifyingSite]]:
    made: list[NotifyingSite] = []

    def make(**target: Any) -> NotifyingSite:
        made.append(NotifyingSite(tmp_path, ManualClock(T0), phone=hook("http://phone.lan", **target)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def sender_of(site: NotifyingSite, way: ScriptedSender) -> TargetSender:
    return TargetSender("phone", site.targets["phone"], site.deps(), way)


def test_a_picture_goes_with_the_message_and_has_an_audit_row_of_its_own(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, picture=True)) as site:
        site.stop()
        site.more["still"] = StillOf(JPEG)
        site.start()
        site.alert()
        site.becomes("told")
        (taken,) = phone.taken
        assert base64.b64decode(taken.body["picture"]["base64"]) == JPEG
        rows = {row.kind: row for row in AuditStore(site.db).page()}
        assert (rows["frame"].bytes, rows["frame"].sha256) == (len(JPEG), hashlib.sha256(JPEG).hexdigest())
        assert rows["notice"].bytes == len(taken.raw)
        site.escalate()
        until(lambda: len(phone.taken) == 2)
        assert phone.taken[-1].body["picture"] is None, "an update needs no second one"


def test_a_step_of_the_clock_that_cannot_be_recorded_now_is_not_forgotten(tmp_path: Path) -> None:
    """A box without a clock of its own, whose disk is full as it learns what day it is."""
    with notifying(tmp_path, phone=hook("http://127.0.0.1:9", expire_hours=1)) as here:
        here.alert()
        until(lambda: here.status().failures > 0)
        here.notices.full = True
        before = here.notices.refused
        here.clock.jump(100 * 3600)
        until(lambda: here.notices.refused > before)
        here.notices.full = False
        here.pass_time(11.0)
        until(lambda: here.notice().state != "waiting" or here.notice().window.expire_t > here.clock.now())
        assert here.notice().state == "waiting", here.notice().reason


def test_without_being_asked_for_no_picture_goes(site: Callable[..., NotifyingSite]) -> None:
    made = site()
    made.more["still"] = StillOf(JPEG)
    sent: list[NotificationMessage] = []

    class Keeping(ScriptedSender):
        async def send(self, message: NotificationMessage) -> Any:
            sent.append(message)
            return await super().send(message)

    made.alert()
    go(sender_of(made, Keeping()))
    assert [each.image for each in sent] == [b""]


def test_a_message_waits_for_its_still_but_not_for_long(site: Callable[..., NotifyingSite]) -> None:
    made, way, still = site(picture=True), ScriptedSender(), StillOf(None)
    made.more["still"] = still
    sender = sender_of(made, way)
    made.alert()
    go(sender)
    assert way.sent == []
    made.clock.advance(STILL_WAIT_S - 1)
    go(sender)
    assert way.sent == []
    made.clock.advance(1.1)
    go(sender)
    assert way.sent == ["a1"]
    made.alert("a2")
    still.data = JPEG
    go(sender)
    assert way.sent == ["a1", "a2"]


def quiet(site: NotifyingSite) -> None:
    site.more["in_quiet_hours"] = lambda target, t: (
        target.quiet_hours is not None and armed_at(target.quiet_hours, lambda at: (0, int(at - T0) // 60))(t)
    )


def test_in_quiet_hours_only_what_is_urgent_is_told(site: Callable[..., NotifyingSite]) -> None:
    made, way = site(quiet_hours={"hours": ["00:00-01:00"]}, urgent=["alert"]), ScriptedSender()
    quiet(made)
    sender = sender_of(made, way)
    made.alert()  # a warning
    made.escalate("a2")  # an alert
    go(sender)
    assert way.sent == ["a2"]
    assert (made.notice().state, made.notice().reason) == ("quiet", "not told: quiet hours")
    assert sender.status.quiet == 1
    made.clock.advance(3600)
    made.alert("a3")
    go(sender)
    assert way.sent == ["a2", "a3"]


def test_an_alert_that_grows_urgent_in_quiet_hours_is_told(site: Callable[..., NotifyingSite]) -> None:
    made, way = site(quiet_hours={"hours": ["00:00-01:00"]}, urgent=["alert"]), ScriptedSender()
    quiet(made)
    sender = sender_of(made, way)
    made.alert()  # a warning
    go(sender)
    made.alert()  # the same once more
    go(sender)
    assert (way.sent, made.notice().state, sender.status.quiet) == ([], "quiet", 1)
    made.escalate()
    go(sender)
    assert (way.sent, made.notice().state) == (["a1"], "told")


def test_an_alert_of_which_nobody_wanted_to_be_told_is_told_when_it_grows_graver(
    site: Callable[..., NotifyingSite],
) -> None:
    """As where the only browser of a push target takes severity alert alone."""
    made = site()
    way = ScriptedSender(SendResult(ok=False, refused=True, error="Nobody wants to be told of it at this hour"))
    sender = sender_of(made, way)
    made.alert()
    go(sender)
    assert made.notice().state == "given_up"
    made.escalate()
    go(sender)
    assert (way.sent, made.notice().state) == (["a1", "a1"], "told")


def test_a_further_rule_ends_the_silence_of_a_snoozed_one(site: Callable[..., NotifyingSite]) -> None:
    made, way = site(), ScriptedSender()
    made.more["quiet_reason"] = lambda target, camera, rules: "snoozed" if set(rules) <= {"intruder"} else ""
    sender = sender_of(made, way)
    made.alert()
    go(sender)
    assert made.notice().state == "quiet"
    before = opened("a1", t=T0)
    assert before.event is not None
    more = replace(before.event, rule="tailgate", t=T0 + 1)
    made.write(AlertChange("extended", replace(before.alert, rules=("intruder", "tailgate")), more))
    go(sender)
    assert (way.sent, made.notice().state) == (["a1"], "told")


def test_an_alert_that_is_not_stored_waits_for_nobody_but_heeds_quiet_hours(site: Callable[..., NotifyingSite]) -> None:
    """With a full disk at night a warning is no more urgent than on any other night."""
    made, way = site(quiet_hours={"hours": ["00:00-01:00"]}, urgent=["alert"]), ScriptedSender()
    quiet(made)
    sender = sender_of(made, way)
    for name, severity in (("a1", "warning"), ("a2", "alert")):
        change = opened(name, t=T0)
        change = replace(change, alert=replace(change.alert, severity=severity))
        (notice,) = made.planner.plan(change, T0)
        sender.send_unstored(UnstoredAlert(notice, change, "the disk is full"))
    go(sender)
    assert way.sent == ["a2"]


def test_a_fault_waits_for_the_end_of_quiet_hours(site: Callable[..., NotifyingSite]) -> None:
    made, way = site(quiet_hours={"hours": ["00:00-01:00"]}, health=["moved"]), ScriptedSender()
    quiet(made)
    sender = sender_of(made, way)
    made.health.put(HealthEvent(camera="yard", id="h1", kind="moved", t=T0, t_start=T0, reason="it was turned"))
    go(sender)
    assert way.sent == []
    made.clock.advance(3600)
    go(sender)
    assert way.sent == [""]


@pytest.mark.parametrize("later", [True, False])
def test_of_a_fault_that_was_refused_no_end_is_told(site: Callable[..., NotifyingSite], later: bool) -> None:
    """Later: as in the quiet hours of all who subscribed; a fault that lasts is told after them."""
    made = site(health=["moved"])
    refused = SendResult(ok=False, refused=True, later=later, error="Nobody wants to be told of it at this hour")
    way = ScriptedSender(refused)
    sender = sender_of(made, way)
    fault = HealthEvent(camera="yard", id="h1", kind="moved", t=T0, t_start=T0, reason="it was turned")
    made.health.put(fault)
    go(sender)
    assert len(way.sent) == 1
    if later:
        made.clock.advance(PUT_OFF_S)
        go(sender)
        assert len(way.sent) == 2, "told"
        way.script = [refused]
    made.health.put(replace(fault, t=T0 + 90, t_end=T0 + 90))
    for _ in range(5):
        made.clock.advance(PUT_OFF_S)
        go(sender)
    assert len(way.sent) == (4 if later else 1), "the end is told to who knows of the fault, at an hour for it"


def test_a_fault_that_lasts_is_not_told_again_with_other_settings(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, health=["moved"])) as made:
        fault = HealthEvent(camera="yard", id="h1", kind="moved", t=T0, t_start=T0, reason="it was turned")
        made.health.put(fault)
        until(lambda: len(phone.taken) == 1)
        before = made.notifier
        made.stop()
        made.start(before)
        made.alert()
        until(lambda: len(phone.taken) == 2)
        made.health.put(replace(fault, t=T0 + 9, t_end=T0 + 9))
        made.pass_time(99)
        until(lambda: len(phone.taken) == 3)
        assert [each.body["type"] for each in phone.taken] == ["health", "alert", "health"]
        assert [each.body["over"] for each in phone.taken] == [False, False, True]


def test_a_snooze_is_of_what_was_snoozed_and_says_why(site: Callable[..., NotifyingSite]) -> None:
    made, way = site(), ScriptedSender()
    made.more["quiet_reason"] = lambda target, camera, rules: f"{target} {camera} {rules}" if camera == "yard" else ""
    sender = sender_of(made, way)
    made.alert()
    made.alert("a2", camera="gate")
    go(sender)
    assert way.sent == ["a2"]
    assert made.notice().reason == "phone yard ('intruder',)"


def test_ntfy_gets_the_picture_as_the_body_and_all_else_in_headers() -> None:
    target = NtfyTarget.model_validate({"kind": "ntfy", "url": "https://ntfy.example/", "topic": "t", "token": "tk"})
    request = request_for(target, MESSAGE, T0)
    assert (request.method, request.url, request.body) == ("PUT", "https://ntfy.example/t", JPEG)
    assert request.headers["x-title"] == "Person at gate"
    words = request.headers["x-message"]
    assert words.isascii()
    assert "\n" not in words
    assert "\\n" in base64.b64decode(words.split("?")[3]).decode() if words.startswith("=?") else "\\n" in words
    actions = json.loads(request.headers["x-actions"])
    assert [(each["url"], json.loads(each["body"])) for each in actions] == [
        ("https://cams.example/snooze/x.y", {"minutes": 15}), ("https://cams.example/snooze/x.y", {"minutes": 60}),
    ]  # fmt: skip
    assert request.headers["authorization"] == "Bearer tk"


def test_apprise_gets_the_picture_as_an_attachment(tmp_path: Path) -> None:
    with Receiver() as service:
        target = AppriseTarget.model_validate({"kind": "apprise", "url": f"json://127.0.0.1:{service.port}/x"})
        assert asyncio.run(AppriseSender(target, ManualClock(T0)).send(MESSAGE)).ok
    (taken,) = service.taken
    assert base64.b64decode(taken.body["attachments"][0]["base64"]) == JPEG
    assert "https://cams.example/snooze/x.y" in taken.body["message"]


CAMERA: dict[str, Any] = {
    "url": "file:x.mp4",
    "zones": {"z": [[0, 0], [1, 0], [1, 1]], "door": [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]},
    "rules": [{"name": "intruder", "kind": "enter", "zone": "z"}],
}


@pytest.mark.parametrize(
    ("privacy", "local", "there"),
    [({}, False, "all"), ({"image_free": True}, False, ""), ({"image_free": True}, True, "all"),
     ({"privacy": {"never": [{"zones": ["z"]}]}}, False, ""), ({"privacy": {"mask": ["door"]}}, False, "masked"),
     ({"privacy": {"mask": ["door"]}}, True, "all"), ({"privacy": {"blur": "surroundings"}}, False, "blurred")],
)  # fmt: skip
def test_what_privacy_withholds_or_hides_does_not_leave_in_a_picture(
    tmp_path: Path, privacy: dict[str, Any], local: bool, there: str
) -> None:
    made = NotifyingSite(tmp_path, ManualClock(T0), phone=hook("http://phone.lan"))
    config = SiteConfig.model_validate({"cameras": {"yard": {**CAMERA, **privacy}}})
    rules = PrivacyRules(config.site, config.cameras, local_weekday_minute)
    stills = ShareableStills(
        tmp_path, READ_DIRECTLY, BoxStore(made.db), config.cameras, lambda each: rules.level(each) == "free"
    )
    made.alert()
    detail = made.alerts.get("a1")
    assert detail is not None
    waiting = stills.read(detail, local)
    assert waiting == (b"" if there == "" else None), "what may not go is not waited for"
    image = np.random.default_rng(1).integers(0, 255, (120, 160, 3), dtype=np.uint8)
    (tmp_path / "s.jpg").write_bytes(bytes(cv2.imencode(".jpg", image)[1]))
    EvidenceStore(made.db).put(EvidenceRow(alert="a1", kind="still", state="ready", path="s.jpg", t_start=T0))
    detail = made.alerts.get("a1")
    assert detail is not None
    data = stills.read(detail, local)
    assert data is not None
    if there == "all":
        assert data == (tmp_path / "s.jpg").read_bytes()
    elif not there:
        assert data == b""
    else:
        seen = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).astype(int)
        assert data != (tmp_path / "s.jpg").read_bytes()
        hidden = seen[5:115, 5:70]
        assert hidden.std() < (5 if there == "masked" else image.std() / 2)
    made.close()


@pytest.mark.parametrize("run", ["r2", None])
def test_a_picture_shows_the_object_of_its_own_moment_and_nobody_of_another_session(
    tmp_path: Path, run: str | None
) -> None:
    """Track numbers begin anew with each session; a still that stands in shows its object elsewhere than the best."""
    left, right = (0.0, 0.2, 0.2, 0.8), (0.7, 0.2, 0.9, 0.8)
    made = NotifyingSite(tmp_path, ManualClock(T0), phone=hook("http://phone.lan"))
    config = SiteConfig.model_validate({"cameras": {"yard": {**CAMERA, "privacy": {"blur": "people"}}}})
    boxes = BoxStore(made.db)
    if run:
        boxes.append("yard", run, [sample_frame(T0 + 0.5, seq=0, box=right)])
    made.write(opened(view=best(T0 + 9, box=right)))
    image = np.random.default_rng(1).integers(0, 255, (120, 160, 3), dtype=np.uint8)
    (tmp_path / "s.jpg").write_bytes(bytes(cv2.imencode(".jpg", image)[1]))
    still = EvidenceRow(alert="a1", kind="still", state="ready", path="s.jpg", t_start=T0, box=left)
    EvidenceStore(made.db).put(still)
    detail = made.alerts.get("a1")
    assert detail is not None
    data = ShareableStills(tmp_path, READ_DIRECTLY, boxes, config.cameras, lambda each: True).read(detail, False)
    seen = cv2.imdecode(np.frombuffer(data or b"", np.uint8), cv2.IMREAD_COLOR).astype(int)
    own, stranger = seen[30:90, 2:30], seen[30:90, 114:142]
    assert stranger.std() < image.std() / 2 < own.std()
    made.close()


def test_a_camera_that_is_not_in_the_site_file_has_no_picture(tmp_path: Path) -> None:
    made = NotifyingSite(tmp_path, ManualClock(T0), phone=hook("http://phone.lan"))
    cameras: dict[str, CameraConfig] = {}
    made.alert()
    detail = made.alerts.get("a1")
    assert detail is not None
    assert (
        ShareableStills(tmp_path, READ_DIRECTLY, BoxStore(made.db), cameras, lambda each: True).read(detail, True)
        == b""
    )
    made.close()
