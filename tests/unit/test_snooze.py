"""Links in messages that snooze: signed, for one use, not for long, and good for nothing else."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import PreconditionError
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes
from appliance.notify.message import LINK_S, AlertFinding, NotificationMessage, SnoozeLinks
from appliance.rules.arming import Arming
from appliance.store.arming import ArmingStore
from appliance.store.database import Database
from appliance.store.push_subscriptions import UsedLinkStore
from appliance.store.users import AccessLog
from tests.support.dashboard_site import Site, config_of

T0 = 1_700_000_000.0
MESSAGE = NotificationMessage(
    id="n1", alert="a1", site="depot-7", camera="gate", severity="alert",
    finding=AlertFinding("edge", ("intruder",), ("person",), 0.9),
    t=T0,
)  # fmt: skip


@dataclass
class Snoozing:
    """A site with a token, and its dashboard for somebody who has not signed in."""

    site: Site
    links: SnoozeLinks
    arming: Arming
    http: TestClient

    def path(self, target: str = "phone", message: NotificationMessage = MESSAGE) -> str:
        return self.links.link(target, message).removeprefix("https://cams.example")


@pytest.fixture
def snoozing(tmp_path: Path) -> Iterator[Snoozing]:
    config = config_of(token="a-token-nobody-guesses").model_dump(exclude_none=True)
    config["dashboard"]["token"] = "a-token-nobody-guesses"
    config["notify"] = {"phone": {"kind": "webhook", "url": "http://127.0.0.1:9/x"}}
    site = Site(tmp_path, ManualClock(T0), SiteConfig.model_validate(config))
    links = SnoozeLinks(tmp_path, "https://cams.example", UsedLinkStore(site.db))
    arming = Arming(site.config.arming, site.config.cameras, ArmingStore(site.db), site.clock, lambda t: (0, 0))
    app = create_app(site.stored, site.config.for_dashboard(), probes=CoreProbes(snooze_links=links, arming=arming))
    with TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False) as http:
        yield Snoozing(site, links, arming, http)
    site.close()


def test_a_link_snoozes_its_target_once_without_signing_in(snoozing: Snoozing) -> None:
    path = snoozing.path()
    page = snoozing.http.get(path, headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "Only the rule intruder" in page.text
    assert snoozing.arming.pauses.snoozed() == (), "to open it does nothing: messengers do that, too"
    done = snoozing.http.post(path, json={"minutes": 60})
    assert done.json() == {"target": "phone", "camera": "gate", "rule": "", "until_t": T0 + 3600}
    assert "snoozed" in snoozing.arming.quiet_reason("phone", "gate", ("intruder",))
    again = snoozing.http.post(path, json={"minutes": 60})
    assert (again.status_code, again.json()["detail"]) == (410, "This link was used already.")
    assert "This link was used" in snoozing.http.get(path).text
    (row,) = AccessLog(snoozing.site.db).newest()
    assert (row.who, row.what, row.about) == ("link to phone", "snoozed", "gate for 60 min")
    snoozing.site.clock.jump(3601)
    assert snoozing.arming.quiet_reason("phone", "gate", ("intruder",)) == ""


def test_of_a_rule_only_that_rule_is_snoozed(snoozing: Snoozing) -> None:
    assert snoozing.http.post(snoozing.path(), json={"minutes": 15, "rule_only": True}).status_code == 200
    (row,) = snoozing.arming.pauses.snoozed()
    assert (row.camera, row.rule, row.until_t) == ("gate", "intruder", T0 + 900)


def test_a_link_lets_nobody_do_anything_else(snoozing: Snoozing) -> None:
    for path in ("/", "/api/v1/arming", "/api/v1/alerts", "/api/v1/notify"):
        assert snoozing.http.get(path, headers={"accept": "application/json"}).status_code == 401
    assert snoozing.http.post("/api/v1/arming", json={"profile": "disarmed"}).status_code == 401
    for minutes in (0, 16, 600, 1e9):
        assert snoozing.http.post(snoozing.path(), json={"minutes": minutes}).status_code == 422
    foreign = {"origin": "https://evil.example"}
    assert snoozing.http.post(snoozing.path(), json={"minutes": 60}, headers=foreign).status_code == 403
    assert snoozing.arming.pauses.snoozed() == ()


def test_a_forged_a_cut_and_an_old_link_are_refused(snoozing: Snoozing, tmp_path: Path) -> None:
    good = snoozing.path().removeprefix("/snooze/")
    head, _, signature = good.partition(".")
    (tmp_path / "other").mkdir()
    flipped = ("B" if signature[0] == "A" else "A") + signature[1:]
    others = SnoozeLinks(tmp_path / "other", "https://cams.example", UsedLinkStore(snoozing.site.db))
    theirs = others.link("phone", MESSAGE).rpartition("/")[2]
    for token in (head, f"{head}.", f"{head}.{flipped}", f"A{good}", theirs, "x.y", "%00.%ff", "." * 2000):
        answer = snoozing.http.post(f"/snooze/{token}", json={"minutes": 60})
        assert answer.status_code in {404, 405}, token
    snoozing.site.clock.jump(LINK_S + 1)
    assert snoozing.http.post(f"/snooze/{good}", json={"minutes": 60}).status_code == 404
    assert snoozing.arming.pauses.snoozed() == ()


def test_the_key_is_nobody_else_s_and_stays(tmp_path: Path) -> None:
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    link = SnoozeLinks(tmp_path, "https://x.example", UsedLinkStore(db)).link("phone", MESSAGE)
    assert SnoozeLinks(tmp_path, "https://x.example/", UsedLinkStore(db)).link("phone", MESSAGE) == link
    assert stat.S_IMODE((tmp_path / "keys" / "snooze.key").stat().st_mode) == 0o600
    assert SnoozeLinks(tmp_path, "", UsedLinkStore(db)).link("phone", MESSAGE) == ""
    with pytest.raises(PreconditionError):
        SnoozeLinks(tmp_path, "", UsedLinkStore(db)).read("x" * 10_000, T0)
    db.close()


def test_a_key_that_cannot_be_made_now_costs_the_link_and_not_the_message(tmp_path: Path) -> None:
    """It ended the core with 2, after which systemd does not start it again."""
    (tmp_path / "keys").write_bytes(b"")  # no folder, as on a full disk
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    links = SnoozeLinks(tmp_path, "https://cams.example", UsedLinkStore(db))
    assert links.link("phone", MESSAGE) == ""
    (tmp_path / "keys").unlink()
    assert links.link("phone", MESSAGE).startswith("https://cams.example/snooze/")
    db.close()
