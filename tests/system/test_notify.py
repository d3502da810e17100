"""Which message is delivered when, over real HTTP, while targets fail or hang and the appliance is stopped."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.store.audit import AuditStore
from appliance.types import HealthEvent
from tests.servers.receiver import Receiver
from tests.support.notification_site import Link, NotifyingSite, hook, notifying
from tests.support.sample_rows import T0, opened
from tests.support.waiting import until


def start_process(folder: Path, url: str, how: str = "") -> subprocess.Popen[bytes]:
    """A site of its own that raises alert a1. how: `asked` of the cloud; `written`: kill -9 by itself when that is."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.servers.notifying_process", str(folder), url, how]
    return subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE)


def test_delivered_once_with_a_link_an_audit_row_and_its_bytes_counted(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.alert()
        row = site.becomes("told")
        (taken,) = phone.taken
        assert (row.messages, row.standing, row.rules) == (1, "edge", ("intruder",))
        assert (taken.path, taken.body["standing"], taken.body["update"]) == ("/sesame", "edge", False)
        assert taken.body["link"] == "https://box.lan/alerts/a1"
        (left,) = AuditStore(site.db).page()
        assert (left.kind, left.bytes, left.camera) == ("notice", len(taken.raw), "yard")
        assert left.sha256 == hashlib.sha256(taken.raw).hexdigest()
        counted = {total.kind: total.amount for total in site.meter.totals("all") if total.camera == "yard"}
        assert counted["uplink_bytes"] == counted["uplink_bytes_notice"] > len(taken.raw)
        site.stop()
        site.start()
        site.alert("a2")
        site.becomes("told", "a2")
        assert [each.body["alert"] for each in phone.taken] == ["a1", "a2"]


def test_what_stays_on_the_site_is_neither_audited_nor_counted_as_sent_up(tmp_path: Path) -> None:
    with Receiver() as siren, notifying(tmp_path, siren=hook(siren.url, local=True)) as site:
        site.forbidden.add("yard")
        site.alert()
        site.becomes("told", target="siren")
        assert AuditStore(site.db).page() == []
        assert {total.kind for total in site.meter.totals("all")} == {"notice_local_bytes"}


def test_retries_with_the_same_id_and_shows_the_failure(tmp_path: Path) -> None:
    with Receiver(500, "reset") as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.alert()
        until(lambda: site.status().failures == 1)
        assert "answered 500" in site.status().error
        until(lambda: "answered 500" in site.notice().reason)
        site.pass_time(10)
        until(lambda: site.status().failures == 2)
        assert "broke the connection" in site.status().error
        assert site.notice().state == "waiting"
        site.pass_time(20)
        site.becomes("told")
        assert len({each.headers["webhook-id"] for each in phone.taken}) == 1
        assert len({each.raw for each in phone.taken}) == 1
        assert (site.status().failing_since, site.status().error) == (None, "")


def test_a_target_that_hangs_delays_no_other(tmp_path: Path) -> None:
    with (
        Receiver("hang") as siren,
        Receiver() as phone,
        notifying(tmp_path, siren=hook(siren.url, timeout_s=1), phone=hook(phone.url)) as site,
    ):
        site.alert()
        site.becomes("told", target="phone")
        until(lambda: site.status("siren").failures == 1)
        assert "did not answer within 1 s" in site.status("siren").error
        site.pass_time(10)
        site.becomes("told", target="siren")


def test_a_response_without_end_is_cut_off(tmp_path: Path) -> None:
    with Receiver("drip") as phone, notifying(tmp_path, phone=hook(phone.url, timeout_s=1)) as site:
        site.alert()
        until(lambda: site.status().failures == 1)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with Receiver("redirect") as phone, notifying(tmp_path, phone=hook(phone.url, authorization="Bearer x")) as site:
        site.alert()
        until(lambda: site.status().failures == 1)
        assert "redirect" in site.status().error
        assert [each.path for each in phone.taken] == ["/sesame"]


def test_what_is_refused_for_good_is_given_up_and_the_next_is_delivered(tmp_path: Path) -> None:
    with Receiver(400) as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.alert()
        row = site.becomes("given_up")
        assert "answered 400" in row.reason
        site.alert("a2")
        site.becomes("told", "a2")


def test_given_up_when_it_is_too_old_and_visibly(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, expire_hours=1)) as site:
        phone.always = 503
        site.alert()
        until(lambda: site.status().failures == 1)
        site.pass_time(3601)
        row = site.becomes("given_up")
        assert row.reason.startswith("given up after 1 h: ")
        assert site.status().given_up == 1


def test_nothing_is_sent_of_what_the_cloud_rejects_in_time(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, hold_s=30)) as site:
        site.alert(asked=True)
        site.pass_time(20)
        site.verdict("rejected")
        row = site.becomes("withdrawn")
        assert "before anybody was told" in row.reason
        assert site.status().withdrawn == 1
        assert phone.taken == []


def test_a_confirmation_ends_the_wait_and_brings_its_reason(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, hold_s=30)) as site:
        site.alert(asked=True)
        site.verdict("confirmed")
        site.becomes("told")
        assert phone.taken[0].body["standing"] == "confirmed"
        assert phone.taken[0].body["reason"] == "A person stands there."


def test_unverified_after_the_wait_then_withdrawn_under_the_same_id(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, hold_s=30)) as site:
        site.alert(asked=True)
        site.pass_time(29)
        assert phone.taken == []
        site.pass_time(1)
        site.becomes("told")
        site.verdict("rejected")
        until(lambda: len(phone.taken) == 2)
        until(lambda: site.notice().standing == "withdrawn")
        first, second = (each.body for each in phone.taken)
        assert (first["standing"], first["update"]) == ("unverified", False)
        assert (second["standing"], second["update"]) == ("withdrawn", True)
        assert first["id"] == second["id"]
        assert first["message_id"] != second["message_id"]
        assert (site.status().told, site.status().updated) == (1, 1)


def test_the_wait_goes_on_where_it_was_when_the_appliance_was_stopped(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, hold_s=30)) as site:
        site.alert(asked=True)
        site.pass_time(20)
        site.stop()
        site.start()
        site.pass_time(5)
        assert phone.taken == []
        site.pass_time(5.5)
        site.becomes("told")


@pytest.mark.slow
def test_an_appliance_killed_between_sending_and_recording_sends_the_same_again(tmp_path: Path) -> None:
    with Receiver("hang") as phone:
        killed = start_process(tmp_path, phone.url)
        until(lambda: len(phone.taken) == 1)
        killed.kill()
        killed.communicate()
        with notifying(tmp_path, phone=hook(phone.url)) as site:
            row = site.becomes("told")
            assert row.messages == 1
        first, second = phone.taken
        assert (first.raw, first.headers["webhook-id"]) == (second.raw, second.headers["webhook-id"])


def test_what_a_killed_appliance_may_have_sent_is_withdrawn_when_it_was_nothing(tmp_path: Path) -> None:
    with Receiver("hang") as phone:
        killed = start_process(tmp_path, phone.url, "asked")
        until(lambda: len(phone.taken) == 1)
        killed.kill()
        killed.communicate()
        with contextlib.closing(NotifyingSite(tmp_path, ManualClock(T0), phone=hook(phone.url))) as site:
            site.verdict("rejected")
            site.start()
            site.becomes("told")
        assert [each.body["standing"] for each in phone.taken] == ["unverified", "withdrawn"]


def test_an_appliance_killed_once_the_alert_is_written_sends_it_when_it_is_back(tmp_path: Path) -> None:
    with Receiver() as phone:
        killed = start_process(tmp_path, phone.url, "written")
        killed.communicate()
        assert (killed.returncode, phone.taken) == (-signal.SIGKILL, [])
        with notifying(tmp_path, phone=hook(phone.url)) as site:
            site.becomes("told")
        assert [each.body["alert"] for each in phone.taken] == ["a1"]


@pytest.mark.parametrize("link", [Link(up=False), Link(breaker="open"), Link(breaker="half_open")])
def test_no_hold_for_a_cloud_that_will_not_answer_and_the_message_mentions_it(tmp_path: Path, link: Link) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, hold_s=30)) as site:
        site.alert(asked=True)
        site.pass_time(1)
        assert phone.taken == []
        site.link = replace(link, since=site.clock.now() - 60)
        site.notifier.wake()
        site.becomes("told")
        assert phone.taken[0].body["standing"] == "unverified"
        assert "nobody has checked it" in phone.taken[0].body["degraded"][0]


def test_an_alert_of_a_faulty_camera_mentions_the_fault(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        ill = HealthEvent(id="h", camera="yard", kind="covered", t_start=1.0, t=2.0, reason="the lens is covered")
        site.health.put(ill)
        site.alert()
        site.becomes("told")
        assert phone.taken[0].body["degraded"] == ["the camera is not well: the lens is covered"]


def test_a_more_severe_alert_is_sent_again(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.alert()
        site.becomes("told")
        site.escalate()
        until(lambda: len(phone.taken) == 2)
        assert [each.body["severity"] for each in phone.taken] == ["warning", "alert"]
        assert phone.taken[1].body["update"]


def test_a_message_that_may_have_arrived_is_withdrawn(tmp_path: Path) -> None:
    """It was read and not answered: whoever read it must hear that it was nothing."""
    with Receiver("reset") as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.alert(asked=True)
        until(lambda: site.status().failures == 1)
        site.verdict("rejected")
        site.pass_time(10)
        site.becomes("told")
        assert [(each.body["standing"], each.body["update"]) for each in phone.taken] == [
            ("unverified", False),
            ("withdrawn", True),
        ]


def test_the_same_again_is_quiet_for_a_while(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url, repeat_s=60)) as site:
        site.alert()
        site.becomes("told")
        site.pass_time(30)
        site.alert("a2")
        assert "told less than 60 s before" in site.becomes("quiet", "a2").reason
        site.alert("a3", camera="gate")
        site.becomes("told", "a3")
        site.pass_time(31)
        site.alert("a4")
        site.becomes("told", "a4")
        assert [each.body["alert"] for each in phone.taken] == ["a1", "a3", "a4"]


def test_an_incident_over_two_cameras_is_one_message_while_that_one_stands(tmp_path: Path) -> None:
    """The second alert is told when it is graver, and when the first turns out to be nothing."""
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.alert("a1", asked=True)
        site.becomes("told", "a1")
        site.alert("a2", camera="gate", incident="a1")
        assert site.becomes("quiet", "a2").reason == "Told already: one incident with an alert of yard"
        site.alert("b1", camera="gate")
        site.becomes("told", "b1")
        site.verdict("rejected", "a1")
        site.becomes("told", "a2")
        assert [(each.body["alert"], each.body["standing"]) for each in phone.taken] == [
            ("a1", "unverified"), ("b1", "edge"), ("a1", "withdrawn"), ("a2", "edge"),
        ]  # fmt: skip


def test_what_privacy_forbids_never_leaves_also_when_it_is_forbidden_later(tmp_path: Path) -> None:
    with Receiver(503) as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.forbidden.add("gate")
        site.alert("a1", camera="gate")
        assert site.notice().state == "forbidden"
        site.alert("a2")
        until(lambda: site.status().failures == 1)
        site.forbidden.add("yard")
        site.pass_time(10)
        site.becomes("forbidden", "a2")
        assert [each.answered for each in phone.taken] == [503]


def test_while_the_disk_is_full_people_are_notified_once_all_the_same(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.notices.full = True
        site.alert("a1")
        until(lambda: len(phone.taken) == 1)
        change = opened("a2", t=site.clock.now())
        planned = site.planner.plan(change, site.clock.now())
        site.notifier.notify_unstored(change, planned, "the disk is full")  # the alert itself waits in memory
        until(lambda: len(phone.taken) == 2)
        assert phone.taken[1].body["degraded"] == ["the disk is full"]
        site.notices.full = False
        site.write(change)
        site.becomes("told", "a1")
        site.becomes("told", "a2")
        site.alert("a3")
        site.becomes("told", "a3")
        assert [each.body["alert"] for each in phone.taken] == ["a1", "a2", "a3"]
        assert len(AuditStore(site.db).page()) == 3


def test_no_more_wait_than_there_is_room_for_and_the_most_severe_stay(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.stop()
        for n in range(4):
            site.alert(f"a{n}")
            site.pass_time(1)
        site.escalate("a0")
        assert [row.alert for row in site.notices.overflow(2)] == ["a2", "a1"]


def test_a_target_that_was_taken_out_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.stop()
        site.alert()
        site.targets = {}
        site.start()
        assert "no such target" in site.becomes("given_up").reason


def test_no_secret_and_no_path_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "appliance")
    with (
        Receiver(500, "redirect", 403) as phone,
        notifying(tmp_path, phone=hook(phone.url, authorization="Bearer open", secret="eight888")) as site,
    ):
        site.alert()
        for n in (1, 2, 3):
            until(lambda n=n: site.status().failures == n)
            site.pass_time(30)
        site.becomes("told")
        shown = " ".join(each.getMessage() for each in caplog.records if each.name.startswith("appliance"))
        assert "500" in shown
        for secret in ("sesame", "Bearer open", "eight888"):
            assert secret not in shown + repr(site.notifier.statuses) + site.notice().reason


def overload(name: str = "o1", camera: str = "gate", **more: object) -> HealthEvent:
    return replace(
        HealthEvent(camera=camera, id=name, kind="overloaded", t=T0, t_start=T0 - 10, reason="it gets 0.7 of 5.0"),
        **more,
    )


def test_an_overload_is_told_once_while_it_lasts_and_once_when_it_is_over(tmp_path: Path) -> None:
    with Receiver() as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.health.put(overload())
        site.pass_time(1)
        until(lambda: len(phone.taken) == 1)
        said = phone.taken[0].body
        assert (said["type"], said["health"], said["over"], said["camera"]) == ("health", "overloaded", False, "gate")
        assert (said["title"], said["reason"]) == ("Too few inferences at gate", "it gets 0.7 of 5.0")
        assert said["link"] == "https://box.lan/cameras/gate"
        until(lambda: len(AuditStore(site.db).page()) == 1)
        (left,) = AuditStore(site.db).page()
        assert (left.kind, left.bytes, left.camera) == ("notice", len(phone.taken[0].raw), "gate")
        site.health.put(overload(t_end=T0 + 5))
        site.pass_time(30)
        site.health.put(overload(times=2))  # it came back
        site.pass_time(1)
        site.health.put(overload(times=2, t_end=T0 + 40))
        site.pass_time(40)
        site.alert()
        site.becomes("told")
        assert len(phone.taken) == 2, "a fault that comes and goes is told once"
        site.pass_time(40)
        until(lambda: len(phone.taken) == 3)
        said = phone.taken[2].body
        assert (said["id"], said["update"], said["over"]) == (phone.taken[0].body["id"], True, True)
        assert said["title"] == "Over: Too few inferences at gate"


def test_a_health_event_that_a_target_does_not_want_or_may_not_have_is_not_told(tmp_path: Path) -> None:
    with Receiver() as phone, Receiver() as siren:
        targets = {
            "phone": hook(phone.url, cameras=["yard"]),
            "siren": hook(siren.url, local=True, health=["stalled", "overloaded"]),
        }
        with notifying(tmp_path, **targets) as site:
            site.forbidden.add("yard")
            site.health.put(overload("o1", "gate"))
            site.health.put(overload("o2", "yard"))
            site.health.put(overload("s1", "gate", kind="stalled"))
            site.health.put(overload("m1", "gate", kind="moved"))
            site.pass_time(1)
            until(lambda: len(siren.taken) == 3)
            site.stop()
        assert phone.taken == [], "gate is none of its cameras, and of yard nothing may leave"
        assert {each.body["health"] for each in siren.taken} == {"overloaded", "stalled"}


def test_a_health_event_waits_for_a_target_that_fails(tmp_path: Path) -> None:
    with Receiver(503) as phone, notifying(tmp_path, phone=hook(phone.url)) as site:
        site.health.put(overload())
        site.pass_time(1)
        until(lambda: len(phone.taken) == 1)
        until(lambda: site.status().failures == 1)
        site.pass_time(5)
        until(lambda: len(phone.taken) == 2)
        assert phone.taken[0].body["message_id"] == phone.taken[1].body["message_id"]
