"""Targets in the dashboard: added, changed, tried and removed; their secrets go to a file and never to a page."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from appliance import config
from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes
from appliance.notify.message import PushMeans, VapidKey
from appliance.settings.settings_service import SettingsService
from appliance.settings.yaml_edit import SiteChange
from appliance.store.audit import AuditStore
from appliance.store.push_subscriptions import PushSubscriptionStore
from tests.servers.push_service import PushedBrowser, base64url
from tests.servers.receiver import Receiver
from tests.support.dashboard_site import Site

SITE = """\
site: {name: depot-7}
cameras:
  gate: {url: "rtsp://192.168.1.20/main"}   # the road
notify:
  old: {kind: webhook, url: "http://127.0.0.1:9/hook", secret: not-for-pages, repeat_s: 60}  # stays
"""


class Fixture:
    """A dashboard whose settings are in force at once, as the appliance's are."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "site.yaml"
        self.path.write_text(SITE)
        (folder / "data").mkdir()
        first = config.load(self.path)
        self.site = Site(folder / "data", ManualClock(1_700_000_000.0), first)
        self.push = PushMeans(
            VapidKey(self.site.root), PushSubscriptionStore(self.site.db), lambda user, camera: True, "mailto:a@b.org"
        )
        self.service = SettingsService(self.path, folder, self.site.clock, self._take)
        self.app = create_app(
            self.site.stored, first.for_dashboard(), settings=self.service, probes=CoreProbes(push=self.push)
        )
        self.http = TestClient(self.app, base_url="http://127.0.0.1:8080")

    def _take(self, changed: SiteConfig) -> tuple[str, ...]:
        self.app.state.configure(changed.for_dashboard(), CoreProbes(push=self.push))
        return ()

    def save(self, name: str, status: int = 200, **body: Any) -> Any:
        answer = self.http.post(f"/api/v1/notify/{name}", json={"base": self.service.running.digest, **body})
        assert answer.status_code == status, answer.text
        return answer.json()

    @property
    def written(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.path.read_text())["notify"]
        return found

    @property
    def secrets(self) -> str:
        return self.path.with_suffix(".secrets").read_text()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Fixture]:
    found = Fixture(tmp_path)
    yield found
    found.site.close()


def test_a_target_is_added_and_its_secrets_are_kept_apart(made: Fixture) -> None:
    done = made.save("phone", kind="ntfy", url="https://ntfy.example", topic="geheim-1", token="tk_geheim",
                     quiet_hours="22:00-06:00", urgent=True, severity="alert", picture=True)  # fmt: skip
    assert made.written["phone"] == {
        "kind": "ntfy", "topic": "${NOTIFY_PHONE_TOPIC}", "token": "${NOTIFY_PHONE_TOKEN}",
        "url": "${NOTIFY_PHONE_URL}", "enabled": True, "severities": ["alert"],
        "quiet_hours": {"hours": ["22:00-06:00"]}, "urgent": ["alert"], "picture": True, "local": False,
    }  # fmt: skip
    assert "NOTIFY_PHONE_TOKEN=tk_geheim" in made.secrets
    assert "NOTIFY_PHONE_URL=https://ntfy.example" in made.secrets
    assert stat.S_IMODE(made.path.with_suffix(".secrets").stat().st_mode) == 0o600
    assert "# stays" in made.path.read_text()
    running = made.service.running.config.notify["phone"]
    assert running.quiet_hours is not None
    (item,) = [each for each in done["targets"] if each["name"] == "phone"]
    assert (item["host"], item["quiet_hours"], item["picture"]) == ("ntfy.example", "22:00-06:00", True)
    for page in ("/notify", "/api/v1/notify", "/api/v1/settings", "/settings"):
        text = made.http.get(page).text
        assert not [secret for secret in ("geheim", "not-for-pages") if secret in text], page
        assert "/hook" not in text


@pytest.mark.parametrize(
    ("kind", "given"),
    [("ntfy", {"url": "https://ntfy.example/${HOME}"}), ("webhook", {"url": "https://h.example/${HOME}"}),
     ("ntfy", {"url": "https://ntfy.example", "token": "a${HOME}b"})],
)  # fmt: skip
def test_a_variable_in_what_is_typed_stays_text(made: Fixture, kind: str, given: dict[str, str]) -> None:
    topic = {"topic": "t"} if kind == "ntfy" else {}
    made.save("phone", kind=kind, **topic, **given)
    held = made.service.running.config.notify["phone"].model_dump()
    assert "${HOME}" in str(held["url"]) + (held.get("token").get_secret_value() if held.get("token") else "")


def test_a_secret_is_kept_only_with_the_change_that_names_it(made: Fixture) -> None:
    made.save("phone", 422, kind="webhook", url="ftp://x/y", secret="another-secret")
    assert not made.path.with_suffix(".secrets").exists()


def test_two_names_that_differ_in_a_sign_alone_keep_a_secret_each(made: Fixture) -> None:
    made.save("a-b", kind="webhook", url="https://one.example")
    made.save("a_b", kind="webhook", url="https://two.example")
    held = made.service.running.config.notify
    assert [held[name].model_dump()["url"] for name in ("a-b", "a_b")] == ["https://one.example", "https://two.example"]


def test_what_the_file_says_in_more_words_stays_where_the_form_did_not_change_it(made: Fixture) -> None:
    more = {
        "severities": ["warning"], "health": ["disk"], "urgent": ["warning", "alert"],
        "quiet_hours": {"days": ["sat"], "hours": ["22:00-06:00", "12:00-13:00"]},
    }  # fmt: skip
    made.service.change(
        [SiteChange(("notify", "old", key), value) for key, value in more.items()], made.service.running.digest, "", ""
    )
    (item,) = made.http.get("/api/v1/notify").json()["targets"]
    form = {"kind": "webhook", "health": True, "urgent": True, "quiet_hours": item["quiet_hours"]}
    made.save("old", **form, enabled=False)
    assert {key: made.written["old"][key] for key in more} == more
    assert made.written["old"]["enabled"] is False
    made.save("old", **{**form, "health": False, "urgent": False, "severity": "alert", "quiet_hours": "01:00-02:00"})
    assert made.written["old"] | {
        "health": [], "severities": ["alert"], "quiet_hours": {"hours": ["01:00-02:00"]}
    } == made.written["old"]  # fmt: skip
    assert "urgent" not in made.written["old"]


def test_an_empty_secret_stays_and_other_keys_too(made: Fixture) -> None:
    made.save("old", kind="webhook", severity="info", enabled=False)
    assert made.written["old"]["secret"] == "not-for-pages"
    assert made.written["old"]["repeat_s"] == 60
    assert made.written["old"]["severities"] == ["info", "warning", "alert"]
    made.save("old", kind="webhook", secret="another-secret")
    assert made.written["old"]["secret"] == "${NOTIFY_OLD_SECRET}"
    assert "NOTIFY_OLD_SECRET=another-secret" in made.secrets


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [("phone", {"kind": "ntfy"}, "url"), ("old", {"kind": "ntfy"}, "keeps its kind"),
     ("phone", {"kind": "webhook", "url": "ftp://x/y"}, "http"), ("Phone!", {"kind": "push"}, "Phone"),
     ("phone", {"kind": "webhook", "url": "https://8.8.8.8/x", "local": True}, "not an address")],
)  # fmt: skip
def test_what_is_wrong_is_refused_in_words_and_nothing_changes(
    made: Fixture, name: str, body: dict[str, Any], words: str
) -> None:
    before = made.path.read_text()
    assert words in made.save(name, 422, **body)["detail"]
    assert made.path.read_text() == before


def test_a_target_is_removed(made: Fixture) -> None:
    assert made.http.request("DELETE", "/api/v1/notify/old", json={}).json()["targets"] == []
    assert "notify" not in yaml.safe_load(made.path.read_text()) or not made.written
    assert made.http.request("DELETE", "/api/v1/notify/old", json={}).status_code == 404


def test_a_test_message_is_sent_and_leaves_like_any_other(made: Fixture) -> None:
    with Receiver() as hook:
        made.save("hook", kind="webhook", url=f"{hook.url}/sesame")
        done = made.http.post("/api/v1/notify/hook/test", json={}).json()
        assert done["ok"]
        assert "took it" in done["message"]
        assert hook.taken[0].body["type"] == "test"
        hook.always = 401
        done = made.http.post("/api/v1/notify/hook/test", json={}).json()
        assert (done["ok"], done["status"]) == (False, 401)
        assert "sesame" not in done["message"]
    (row,) = AuditStore(made.site.db).page()
    assert row.why == "test message to hook"
    assert {total.kind for total in made.site.meter.totals("all")} == {"uplink_bytes", "uplink_bytes_notice"}
    assert made.http.post("/api/v1/notify/nobody/test", json={}).status_code == 404


def test_a_browser_subscribes_and_is_taken_off(made: Fixture) -> None:
    nobody = {
        "key": "",
        "target": "",
        "browsers": [],
        "preferences": {"severity": "info", "quiet_hours": "", "urgent": False},
    }
    assert made.http.get("/api/v1/push").json() == nobody
    browser = PushedBrowser()
    body = {"endpoint": "https://fcm.googleapis.com/fcm/send/x", "p256dh": base64url(browser.p256dh),
            "auth": base64url(browser.auth), "label": "Chrome/1 Linux"}  # fmt: skip
    assert made.http.post("/api/v1/push", json=body).status_code == 404
    made.save("browsers", kind="push")
    assert made.http.get("/api/v1/push").json()["key"] == made.push.key.public
    (mine,) = made.http.post("/api/v1/push", json=body).json()["browsers"]
    assert mine["label"] == "Chrome/1 Linux"
    for wrong in ({"endpoint": "https://10.0.0.1/x"}, {"p256dh": "AAAA"}, {"auth": "?"}):
        assert made.http.post("/api/v1/push", json={**body, **wrong}).status_code == 422
    (row,) = made.push.subscriptions.all()
    assert (row.p256dh, row.auth) == (browser.p256dh, browser.auth)
    assert "fcm" not in made.http.get("/notify").text
    assert made.http.request("DELETE", f"/api/v1/push/{mine['id']}", json={}).json()["browsers"] == []
    assert made.http.request("DELETE", f"/api/v1/push/{mine['id']}", json={}).status_code == 404


def test_nobody_else_s_browser_can_be_taken_off(made: Fixture) -> None:
    made.save("browsers", kind="push")
    from appliance.store.push_subscriptions import PushSubscription
    from appliance.store.users import UserRow, UserStore

    UserStore(made.site.db).add(UserRow(name="anna", role="admin", cameras=None, password="x"))
    row = PushSubscription(target="browsers", user="anna", endpoint="https://x", p256dh=b"", auth=b"")
    made.push.subscriptions.put(row)
    assert not made.push.subscriptions.remove(row.id, "")
    assert made.push.subscriptions.remove(row.id, "anna")


def test_the_app_s_manifest_and_worker_are_for_everybody_and_say_nothing(made: Fixture) -> None:
    manifest = made.http.get("/manifest.webmanifest")
    assert manifest.headers["content-type"] == "application/manifest+json"
    assert "depot" not in manifest.text
    for icon in manifest.json()["icons"]:
        assert made.http.get(icon["src"]).headers["content-type"] == "image/png"
    worker = made.http.get("/sw.js")
    assert worker.headers["content-type"].startswith("text/javascript")
    assert "worker-src 'self'" in worker.headers["content-security-policy"]
