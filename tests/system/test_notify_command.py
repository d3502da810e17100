"""`vedette notify test` and what `vedette check` says of the targets, as a person types them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from appliance.__main__ import main
from appliance.config import SiteConfig
from appliance.notify.notifier import check_targets
from tests.servers.receiver import Receiver

SITE = """
site: {name: depot-7}
cameras: {gate: {url: "file:x.mp4"}}
notify:
  phone: {kind: ntfy, url: "%(phone)s", topic: garage, token: tk_sesame}
  home: {kind: webhook, url: "%(home)s/api/webhook/sesame", local: true}
"""


def site_file(folder: Path, **urls: str) -> str:
    path = folder / "site.yaml"
    path.write_text(SITE % urls)
    return str(path)


def test_the_results_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Receiver() as phone, Receiver(403) as home:
        file = site_file(tmp_path, phone=phone.url, home=home.url)
        assert main(["notify", "test", "--config", file]) == 1
        said = capsys.readouterr().out
        assert "phone: 127.0.0.1 took it (200) in " in said
        assert "home: 127.0.0.1 refuses us (403): check `authorization` or `token`" in said
        assert "sesame" not in said
        assert phone.taken[0].body["title"] == "Test from depot-7"
        assert main(["notify", "test", "--config", file, "--target", "home", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["status"] == 200
        assert len(phone.taken) == 1


def test_a_name_that_is_not_there_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = site_file(tmp_path, phone="http://127.0.0.1:9", home="http://127.0.0.1:9")
    assert main(["notify", "test", "--config", file, "--target", "phon"]) == 2
    assert "there is no target `phon` (there is: phone, home)" in capsys.readouterr().err


def test_check_connects_and_sends_nothing(tmp_path: Path) -> None:
    with Receiver() as phone, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        hook = {"kind": "webhook", "url": f"http://127.0.0.1:{deaf.getsockname()[1]}/x", "hold_s": 5}
        push = {"kind": "ntfy", "url": phone.url, "topic": "t", "token": "x"}
        camera = {"url": "file:x.mp4"}
        site = SiteConfig.model_validate({"cameras": {"gate": camera}, "notify": {"phone": push, "home": hook}})
        found = {
            about: (level, text)
            for about, level, text in check_targets(
                site.notify, public_url=site.dashboard.public_url, has_judge=site.uplink is not None, contact=True
            )
        }
        assert found["notify.phone"][0] == "ok"
        assert found["notify.home"][0] == "unreachable"
        assert found["notify.home.hold_s"][0] == "warning"
        assert "use https" in found["notify.phone.url"][1]
        assert found["dashboard.public_url"][0] == "warning"
        assert phone.taken == []
