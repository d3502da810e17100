"""Web push: what a browser is sent only it can read, once, of cameras its person may see, by known services."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.credentials import own_key
from appliance.base.errors import MissingDependency, UsageError
from appliance.config import PushTarget
from appliance.core.background_services import _in_hours
from appliance.notify import push_sender
from appliance.notify.message import AlertFinding, NotificationMessage, PushMeans, SendResult, VapidKey
from appliance.notify.push_sender import PLAIN_BYTES_MAX, PushSender, encrypt
from appliance.store.database import Database
from appliance.store.push_subscriptions import PER_USER_MAX, PushPreference, PushSubscription, PushSubscriptionStore
from appliance.store.users import UserStore
from appliance.types.accounts import UserRow
from tests.servers.push_service import PushedBrowser, PushService
from tests.support.sample_rows import T0

MESSAGE = NotificationMessage(
    id="n1", alert="a1", site="depot", camera="gate", severity="alert",
    finding=AlertFinding("edge", ("intruder",), ("person",), 0.9),
    t=T0, link="https://cams.example/alerts/a1",
    snooze="https://cams.example/snooze/x.y",
)  # fmt: skip


class Site:
    """One push target, and browsers that subscribed to it."""

    def __init__(self, folder: Path, service: PushService) -> None:
        self.clock = ManualClock(T0)
        self.db = Database(folder / "vedette.db", self.clock)
        self.store = PushSubscriptionStore(self.db)
        self.service = service
        self.key = VapidKey(folder)
        self.folder = folder
        self.target = PushTarget(kind="push", services=(service.host,), tls_ca=service.ca)
        self.sender = self.new_sender()

    def new_sender(self) -> PushSender:
        means = PushMeans(
            self.key, self.store, lambda user, camera: user != "dock-only", "mailto:a@b.org", in_hours=_in_hours
        )
        return PushSender(self.target, "browsers", means, self.clock)

    def subscribe(self, name: str, user: str = "", **more: Any) -> PushedBrowser:
        browser = PushedBrowser()
        endpoint = more.get("endpoint", self.service.endpoint(name))
        self.store.put(
            PushSubscription(
                target="browsers", user=user, endpoint=endpoint, p256dh=browser.p256dh, auth=browser.auth, label=name
            )
        )
        self.clock.advance(1)
        return browser

    def send(self, message: NotificationMessage = MESSAGE) -> SendResult:
        async def once() -> SendResult:
            try:
                return await self.sender.send(message)
            finally:
                await self.sender.close()
                taken, self.sender = self.sender._taken, self.new_sender()
                self.sender._taken = taken

        return asyncio.run(once())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with PushService(tmp_path) as service:
        made = Site(tmp_path, service)
        yield made
        made.db.close()


def test_each_person_says_when_and_of_what_they_are_told(site: Site) -> None:
    for user in ("anna", "max", "eva"):
        UserStore(site.db).add(UserRow(name=user, role="admin", cameras=None, password="x"))
        site.subscribe(user, user)
    now = datetime.fromtimestamp(T0).astimezone()
    quiet = f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M}"
    site.store.put_preference("anna", PushPreference(severity="warning", quiet_hours=quiet, urgent=True))
    site.store.put_preference("max", PushPreference(quiet_hours=quiet))
    site.store.put_preference("eva", PushPreference(severity="alert"))
    site.send()
    assert [each.path for each in site.service.pushed] == ["/send/anna", "/send/eva"]
    result = site.send(replace(MESSAGE, id="n2", severity="warning"))
    assert (result.refused, result.later, result.error) == (True, True, "Nobody wants to be told of it at this hour")
    site.clock.advance(2 * 3600)
    site.send(replace(MESSAGE, id="n3", severity="warning"))
    assert [each.path for each in site.service.pushed[2:]] == ["/send/anna", "/send/max"]
    site.send(replace(MESSAGE, id="n4", severity="info", test=True))
    assert len(site.service.pushed) == 7, "a test reaches everybody"


def test_only_the_browser_can_read_what_it_is_sent_and_knows_who_sent_it(site: Site) -> None:
    browser = site.subscribe("phone")
    result = site.send()
    assert result.ok
    (pushed,) = site.service.pushed
    assert browser.read(pushed.body) == {
        "title": "Person at gate", "body": MESSAGE.text, "tag": "n1", "url": "/alerts/a1", "snooze": "/snooze/x.y",
    }  # fmt: skip
    assert b"gate" not in pushed.body
    with pytest.raises(Exception):  # noqa: B017 - whatever the cipher says
        PushedBrowser().read(pushed.body)
    sender = pushed.sender()
    assert (sender["aud"], sender["sub"]) == (f"https://{site.service.host}", "mailto:a@b.org")
    assert T0 < sender["exp"] <= site.clock.now() + 24 * 3600
    assert sender["k"] == site.key.public
    assert (pushed.headers["content-encoding"], pushed.headers["urgency"]) == ("aes128gcm", "high")
    assert result.sent > len(pushed.body)


def test_the_key_is_made_once_and_nobody_else_s(site: Site) -> None:
    first = site.key.public
    path = site.folder / "keys" / "push.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert VapidKey(site.folder).public == first


def test_two_that_want_the_key_first_get_the_same(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    keys: list[bytes] = []

    def make() -> bytes:
        both.wait(60)
        return os.urandom(32)

    threads = [threading.Thread(target=lambda: keys.append(own_key(tmp_path / "key", make))) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert keys == [(tmp_path / "key").read_bytes()] * 2
    assert len(keys[0]) == 32


def test_a_key_that_cannot_be_made_leaves_no_file(tmp_path: Path) -> None:
    def make() -> bytes:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(MissingDependency):
        own_key(tmp_path / "key", make)
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_cannot_be_made_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file, where a folder should be")
    with pytest.raises(MissingDependency, match=r"push\.pem"):
        _ = VapidKey(tmp_path).public


def test_a_key_that_cannot_be_read_now_is_a_failure_to_be_tried_again(site: Site) -> None:
    """It ended the core with 2, after which systemd does not start it again."""
    site.subscribe("phone")
    (site.folder / "keys").mkdir(exist_ok=True)
    key = site.folder / "keys/push.pem"
    key.write_bytes(b"damaged")
    result = site.send()
    assert (result.ok, result.refused) == (False, False)
    assert "is no key for web push" in result.error
    key.unlink()
    assert site.send().ok


def test_a_browser_that_is_gone_is_taken_off_and_the_others_get_theirs(site: Site) -> None:
    site.subscribe("old")
    phone = site.subscribe("phone")
    site.service.statuses["/send/old"] = 410
    assert site.send().ok
    assert [each.label for each in site.store.all()] == ["phone"]
    assert phone.read(site.service.pushed[-1].body)["tag"] == "n1"


def test_after_a_failure_only_those_that_lack_it_are_sent_it(site: Site) -> None:
    site.subscribe("a")
    site.subscribe("b")
    site.service.statuses["/send/b"] = 503
    result = site.send()
    assert (result.ok, result.refused) == (False, False)
    del site.service.statuses["/send/b"]
    assert site.send().ok
    assert [each.path for each in site.service.pushed] == ["/send/a", "/send/b", "/send/b"]


def test_a_message_that_is_still_repeated_is_remembered_longer_than_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_sender, "MESSAGES_REMEMBERED", 2)
    site.subscribe("a")
    site.subscribe("b")
    site.service.statuses["/send/b"] = 503
    for name in ("n1", "n2", "n1", "n3", "n1"):
        site.send(replace(MESSAGE, id=name))
    assert [each.path for each in site.service.pushed].count("/send/a") == 3, "each message once"


def test_a_browser_that_subscribed_to_another_key_delays_no_other(site: Site) -> None:
    """After a restore the appliance has another key, and services answer 403 for each browser of before, for ever."""
    site.subscribe("before")
    site.subscribe("phone")
    site.service.statuses["/send/before"] = 403
    assert site.send().ok
    assert [each.path for each in site.service.pushed] == ["/send/before", "/send/phone"]


def test_a_key_that_every_service_refuses_is_a_failure_of_the_target(site: Site) -> None:
    site.subscribe("phone")
    site.service.statuses["/send/phone"] = 403
    result = site.send()
    assert (result.ok, result.refused, result.status) == (False, False, 403)
    site.service.statuses["/send/phone"] = 400
    result = site.send()
    assert (result.ok, result.refused, result.status) == (False, True, 400)


def test_a_message_that_one_browser_took_may_have_arrived_and_the_next_does_not_wait_long(site: Site) -> None:
    site.subscribe("a")
    site.subscribe("b")
    site.service.statuses["/send/b"] = 429
    result = site.send()
    assert (result.ok, result.maybe) == (False, True)
    assert result.status is None, "as a target that is away: it is tried again within half a minute"


def test_a_browser_hears_only_of_cameras_its_person_may_see(site: Site) -> None:
    users = UserStore(site.db)
    users.add(UserRow(name="anna", role="admin", cameras=None, password="x"))
    users.add(UserRow(name="dock-only", role="viewer", cameras=("dock",), password="x"))
    site.subscribe("anna", "anna")
    site.subscribe("dock", "dock-only")
    site.subscribe("left", "who-left")
    assert site.send().ok
    assert [each.path for each in site.service.pushed] == ["/send/anna"]


def test_who_gets_the_name_of_a_removed_user_does_not_get_their_browsers(site: Site) -> None:
    """Nor does the phone of who left hear again of what happens here."""
    users, ben = UserStore(site.db), UserRow(name="ben", role="viewer", cameras=None, password="x")
    users.add(UserRow(name="anna", role="admin", cameras=None, password="x"))
    users.add(ben)
    site.subscribe("phone", "ben")
    site.store.put_preference("ben", PushPreference(urgent=True))
    users.remove("ben")
    users.add(ben)
    assert (site.store.all(), site.store.preferences()) == ([], {})


def test_without_browsers_it_is_given_up_in_words(site: Site) -> None:
    result = site.send()
    assert (result.ok, result.refused) == (False, True)
    assert "no browser" in result.error


@pytest.mark.parametrize(
    "endpoint",
    ["https://169.254.169.254/latest", "http://fcm.googleapis.com/x", "https://fcm.googleapis.com.evil.example/x",
     "https://user@fcm.googleapis.com/x", "https://evil.example/fcm.googleapis.com", "https://fcm.googleapis.com:8443/",
     "https://evilpush.apple.com/x", "https://push.services.mozilla.com.evil.example/", "https://[::1", "file:///etc/passwd"],
)  # fmt: skip
def test_no_other_host_is_ever_called(site: Site, endpoint: str) -> None:
    with pytest.raises(ValueError, match="push service"):
        PushTarget(kind="push").check_endpoint(endpoint)
    site.subscribe("x", endpoint=endpoint)
    assert site.send().refused
    assert site.service.pushed == []


@pytest.mark.parametrize(
    "endpoint",
    ["https://fcm.googleapis.com/fcm/send/x", "https://updates.push.services.mozilla.com/wpush/v2/x",
     "https://web.push.apple.com/x", "https://db5p.notify.windows.com/w/?token=x"],
)  # fmt: skip
def test_the_services_of_the_browsers_are_known(endpoint: str) -> None:
    PushTarget(kind="push").check_endpoint(endpoint)


@pytest.mark.parametrize(("p256dh", "auth"), [(b"x" * 65, b"y" * 16), (b"\x04" + b"x" * 64, b"y" * 16), (b"", b"")])
def test_keys_that_are_none_are_refused(p256dh: bytes, auth: bytes) -> None:
    with pytest.raises(UsageError, match="no keys"):
        encrypt(b"x", p256dh, auth)


def test_what_a_service_would_not_take_is_not_made() -> None:
    browser = PushedBrowser()
    assert len(encrypt(b"x" * PLAIN_BYTES_MAX, browser.p256dh, browser.auth)) <= 4096
    with pytest.raises(UsageError, match="at most"):
        encrypt(b"x" * (PLAIN_BYTES_MAX + 1), browser.p256dh, browser.auth)


def test_a_person_has_a_bounded_number_of_browsers(site: Site) -> None:
    for n in range(PER_USER_MAX + 2):
        site.subscribe(f"b{n}")
    assert [each.label for each in site.store.all()] == [f"b{n}" for n in range(2, PER_USER_MAX + 2)]
