"""A target of kind `apprise`, over a real apprise service (`json://`) and a real HTTP server."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigError, MissingDependency, UsageError
from appliance.base.yamlfile import loads
from appliance.config import AppriseTarget, SiteConfig
from appliance.config.values import Finding
from appliance.notify.notifier import check_targets
from appliance.store.audit import AuditStore
from tests.servers.receiver import Receiver
from tests.support.notification_site import NotifyingSite, notifying
from tests.support.sample_rows import T0
from tests.support.waiting import until

pytest.importorskip("apprise", reason="the extra `notify` is not installed")


class RootLog(logging.Handler):
    """What the appliance's own handlers get; caplog listens to loggers that do not propagate, too."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def root_log() -> Iterator[RootLog]:
    root, handler = logging.getLogger(), RootLog()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def chat(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"kind": "apprise", "url": f"json://user:sesame@127.0.0.1:{receiver.port}/hook", "timeout_s": 20, **more}


def test_a_message_arrives_is_audited_and_its_bytes_are_counted(tmp_path: Path) -> None:
    with Receiver() as service, notifying(tmp_path, chat=chat(service)) as site:
        site.escalate()
        row = site.becomes("told", target="chat")
        (taken,) = service.taken
        assert (row.messages, row.standing) == (1, "edge")
        assert (taken.path, taken.body["title"], taken.body["type"]) == ("/hook", "Person at yard", "failure")
        assert "intruder, 90% sure" in taken.body["message"]
        assert taken.body["message"].endswith("\nhttps://box.lan/alerts/a1")
        (left,) = AuditStore(site.db).page()
        payload = f"{taken.body['title']}\n{taken.body['message']}".encode()
        assert (left.kind, left.bytes, left.sha256) == ("notice", len(payload), hashlib.sha256(payload).hexdigest())
        counted = {total.kind: total.amount for total in site.meter.totals("all") if total.camera == "yard"}
        assert counted["uplink_bytes_notice"] > len(taken.raw), "estimated, never too few"
        status = site.status("chat")
        assert (status.kind, status.host, status.told) == ("apprise", "apprise json", 1)


def test_a_failure_is_retried_with_backoff_and_no_secret_is_logged(
    tmp_path: Path, root_log: RootLog, capfd: pytest.CaptureFixture[str]
) -> None:
    with Receiver(500, "reset", 403) as service, notifying(tmp_path, chat=chat(service)) as site:
        site.alert()
        for n, error in ((1, "apprise json answered 500"), (2, "broke the connection"), (3, "refuses us (403)")):
            until(lambda n=n: site.status("chat").failures == n)
            assert error in site.status("chat").error
            assert site.notice(target="chat").state == "waiting"
            site.pass_time(30)
        site.becomes("told", target="chat")
        assert len({each.raw for each in service.taken}) == 1, "the same message again"
        assert site.status("chat").failing_since is None
        shown = (
            "".join(root_log.lines)
            + str(site.status("chat"))
            + site.notice(target="chat").reason
            + "".join(capfd.readouterr())
        )
        assert "answered 500" in shown
        assert "sesame" not in shown


def test_a_service_that_hangs_delays_no_other_target(tmp_path: Path) -> None:
    with (
        Receiver("hang") as service,
        Receiver() as other,
        notifying(tmp_path, chat=chat(service, timeout_s=1), other=chat(other)) as site,
    ):
        site.alert()
        site.becomes("told", target="other")
        until(lambda: site.status("chat").failures == 1)
        until(lambda: site.notice(target="chat").doubtful, what="it may have arrived")


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with Receiver("redirect") as service, notifying(tmp_path, chat=chat(service)) as site:
        site.alert()
        until(lambda: site.status("chat").failures == 1)
        assert [each.path for each in service.taken] == ["/hook"]


SITE = """
site: {name: depot-7}
cameras: {gate: {url: "file:x.mp4"}}
notify:
  chat: {kind: apprise, url: "%s"%s}
"""


def check(text: str, *, contact: bool) -> list[Finding]:
    return list(check_targets(loads(text, SiteConfig).notify, public_url="", has_judge=False, contact=contact))


def test_the_commands_check_and_test_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Receiver(200, 404) as service:
        file = tmp_path / "site.yaml"
        file.write_text(SITE % (chat(service)["url"], ""))
        found = {each.about: each for each in check(file.read_text(), contact=True)}
        assert found["notify.chat"].level == "ok"
        assert service.taken == [], "a check sends nothing"
        assert main(["notify", "test", "--config", str(file)]) == 0
        assert "chat: apprise json took it (200) in " in capsys.readouterr().out
        assert service.taken[0].body["title"] == "Test from depot-7"
        assert main(["notify", "test", "--config", str(file), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"] == "apprise json answered 404"


@pytest.mark.parametrize("address", ["bogus://sesame/x", "tgram://sesame"])
def test_an_address_that_apprise_does_not_know_is_found_before_the_start(
    tmp_path: Path, address: str, capfd: pytest.CaptureFixture[str], root_log: RootLog
) -> None:
    (found,) = (each for each in check(SITE % (address, ""), contact=True) if each.about == "notify.chat")
    assert found.level == "wrong"
    assert "apprise cannot use this" in found.text
    with pytest.raises(UsageError, match=r"notify\.chat: apprise cannot use this"):
        NotifyingSite(tmp_path, ManualClock(T0), chat={"kind": "apprise", "url": address})
    assert "sesame" not in found.text + "".join([*root_log.lines, *capfd.readouterr()])


def test_without_the_extra_the_site_file_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    file = tmp_path / "site.yaml"
    file.write_text(SITE % ("json://127.0.0.1/x", ""))
    (found,) = (each for each in check(file.read_text(), contact=False) if "chat" in each[0])
    assert (found.level, "pip install 'vedette[notify]'" in found.text) == ("wrong", True)
    with pytest.raises(MissingDependency):
        NotifyingSite(tmp_path, ManualClock(T0), chat={"kind": "apprise", "url": "json://127.0.0.1/x"})
    assert main(["notify", "test", "--config", str(file)]) == 2
    assert "notify.chat: needs the package apprise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "more", "text"),
    [
        ("sesame", "", "must begin with the name of an apprise service"),
        ("json://x/sesame", ", local: true", "anywhere"),
    ],
)
def test_the_site_file_is_checked_and_the_address_is_a_secret(address: str, more: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        loads(SITE % (address, more), SiteConfig)
    assert "sesame" not in str(error.value)
    assert "sesame" not in repr(AppriseTarget.model_validate({"kind": "apprise", "url": "json://x/sesame"}))
