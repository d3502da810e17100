"""A secret stands in no answer: one is planted at every key that may hold one, however a person writes the YAML."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from appliance import config
from appliance.base.clock import ManualClock
from appliance.base.telemetry import LogRing
from appliance.base.threads import ServiceGroup
from appliance.core.app import build
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import StoredSite
from appliance.settings.settings_service import SettingsService
from appliance.store.database import Database
from tests.support.dashboard_site import Site

EXAMPLE = Path(__file__).parents[2] / "deploy" / "vedette.example.yaml"
HERE = {"Authorization": "Bearer MARK-dashboard-token"}
# What of the example file may hold a secret, with one in it. MARK is in each.
PLANTED: dict[tuple[str, ...], Any] = {
    ("cameras", "gate", "url"): "rtsp://viewer:MARK-pass@192.168.1.20/user=admin_password=MARKpath?key=MARK-query",
    ("cameras", "gate", "detect_url"): "rtsp://viewer:MARK-sub@192.168.1.20/sub",
    ("cameras", "gate", "onvif"): "http://viewer:MARK-onvif@192.168.1.20",
    ("uplink", "url"): "nats://site:MARK-nats@hub.lan:4222",
    ("uplink", "token"): "MARK-nats-token",
    ("notify", "phone", "url"): "https://ntfy.example/MARK-base",
    ("notify", "phone", "topic"): "MARK-topic",
    ("notify", "phone", "token"): "tk_MARK",
    ("notify", "home", "url"): "http://192.168.1.10:8123/api/webhook/MARK-hook?key=MARK-hook-query",
    ("notify", "home", "secret"): "MARK-signing-secret",
    ("notify", "home", "authorization"): "Bearer MARK-'quoted\" #authorization",
    ("notify", "chat", "url"): "tgram://123456:MARKBotToken/4711-MARK",
    ("mqtt", "user"): "vedette",
    ("mqtt", "password"): "MARK mqtt: pass,word}",
    ("dashboard", "token"): "MARK-dashboard-token",
}  # fmt: skip
SECTIONS = {"site", "cameras", *(path[0] for path in PLANTED)}
PAGES = (
    "/settings", "/notify", "/cameras", "/cameras/gate/edit", "/system", "/cameras/new", "/api/v1/notify",
    "/api/v1/cameras", "/api/v1/cameras/gate", "/metrics", "/healthz", "/api/v1/system",
)  # fmt: skip
CHANGED = "KRAM"  # in a second version, of the same secrets


def planted(data: dict[str, Any], mark: str = "MARK") -> dict[str, Any]:
    data = json.loads(json.dumps(data))
    for path, value in PLANTED.items():
        at = data
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value.replace("MARK", mark)
    return data


def block(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False)


def flow(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=True, width=1 << 20)


def quoted(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, default_style='"', width=40)  # long texts over several lines


def as_blocks(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, default_style="|")


def with_comments(data: Any) -> str:
    lines = [f"# {path[-1]}: {value}" for path, value in PLANTED.items()]
    return "\n".join([*lines, block(data), *lines, "# {kind: webhook, authorization: MARK-in-a-comment}", ""])


class Shown:
    """A site of the example file with its dashboard; its settings in force are those of the file."""

    def __init__(self, folder: Path, write: Any) -> None:
        data = {key: value for key, value in yaml.safe_load(EXAMPLE.read_text()).items() if key in SECTIONS}
        del data["uplink"]["urls"]  # `url` is planted
        data["storage"] = {"dir": str(folder / "data")}
        self.path, root = folder / "site.yaml", folder / "data"
        root.mkdir()
        self.path.write_text(write(planted(data, CHANGED)).replace("MARK", CHANGED))
        self.clock = ManualClock(1_700_000_000.0)
        self.service = SettingsService(self.path, root, self.clock, lambda config: ())
        self.text = write(planted(data))
        self.service.replace(self.text, self.service.status().digest, "anna", "other secrets")
        self.site = Site(root, self.clock, config.load(self.path))
        app = create_app(
            StoredSite(self.site.db, self.site.meter, root, self.clock),
            self.site.config.for_dashboard(),
            settings=self.service,
        )
        self.http = TestClient(app, base_url="http://127.0.0.1:8080", headers=HERE)

    def post(self, path: str, **body: Any) -> str:
        answer = self.http.post(path, json={"base": self.service.status().digest, **body})
        assert answer.status_code < 500, answer.text
        return answer.text

    def get(self, path: str) -> str:
        answer = self.http.get(path)
        assert answer.status_code == 200, (path, answer.text[:300])
        return answer.text

    def answers(self) -> Iterator[tuple[str, str]]:
        """Every answer that shows the text of the site file."""
        for path in ("", "/versions", "/versions/1"):
            yield path, self.get(f"/api/v1/settings{path}")
        bundle = zipfile.ZipFile(io.BytesIO(self.http.get("/api/v1/system/diagnostics.zip").content))
        yield from ((f"diagnostics {name}", bundle.read(name).decode()) for name in bundle.namelist())
        change = [{"path": ["notify", "home", "url"], "value": "https://other.example/KRAM-new"},
                  {"path": ["notify", "chat"], "remove": True}, {"path": ["site", "name"], "value": "x"}]  # fmt: skip
        yield "check", self.post("/api/v1/settings/check", changes=change)
        yield "changed", self.post("/api/v1/settings", changes=change)
        for broken in ("", "odd: 1\n", "a: {token: MARK-broken, url: https://x/MARK-broken\n"):
            self.path.write_text(f"{self.text.replace('depot-7', 'renamed')}\n{broken}")
            yield f"edited {broken}", self.http.get("/api/v1/settings").text
            yield f"taken {broken}", self.post("/api/v1/settings/take-edit")
            yield f"diff {broken}", self.http.get("/api/v1/settings/versions/1").text


@pytest.mark.parametrize("write", [flow, quoted, as_blocks, with_comments])
def test_no_answer_shows_a_secret(tmp_path: Path, write: Any) -> None:
    shown = Shown(tmp_path, write)
    pages = ((path, shown.get(path)) for path in PAGES if write is with_comments)
    for where, text in (*pages, *shown.answers()):
        for mark in ("MARK", CHANGED):
            assert mark not in text, f"{where}: {text[max(0, text.find(mark) - 200) : text.find(mark) + 60]}"
    shown.site.close()


def test_a_secret_that_changed_is_a_line_that_changed(tmp_path: Path) -> None:
    shown = Shown(tmp_path, block)
    diff = shown.http.get("/api/v1/settings/versions/1").json()["diff"].splitlines()
    assert "-    token: '***'" in diff or "-    token: ***" in diff
    assert "+    url: http://192.168.1.10:8123/***" in diff, "the host helps, and is no secret"
    assert "+    url: '***'" in diff or "+    url: ***" in diff, "all of an apprise address may be one"
    site = shown.http.get("/api/v1/settings").json()["site"]
    assert site["cameras"]["gate"]["url"] == "rtsp://192.168.1.20/***"
    assert site["notify"]["chat"]["url"] == "***"
    refused = shown.post("/api/v1/settings", changes=[{"path": ["cameras", "gate", "url"],
                                                       "value": "rtsp://192.168.1.20/***"}])  # fmt: skip
    assert "is no value" in refused
    shown.site.close()


def test_a_log_line_whose_arguments_do_not_fit_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    ring = LogRing(ManualClock(1_700_000_000.0))
    ring.handle(logging.LogRecord("appliance.x", logging.INFO, "x.py", 1, "%s and %d", ("one",), None))
    assert ring.tail() == []
    assert "not enough arguments" in capsys.readouterr().err


def test_the_log_shows_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown(tmp_path, block)
    shown.site.close()
    clock = ManualClock(1_700_000_000.0)
    db = Database(tmp_path / "data" / "other.db", clock)
    ring = LogRing(clock)
    logging.getLogger().addHandler(ring)
    try:
        with caplog.at_level(logging.DEBUG):
            build(config.load(shown.path), tmp_path / "data", db, clock, ServiceGroup(), shown.path, log=ring)
            logging.getLogger("appliance.x").warning("lost %s", PLANTED["cameras", "gate", "url"])
            logging.getLogger("appliance.x").warning("lost rtsp://v:MARK\"quoted'>one@h/1 for good")
    finally:
        logging.getLogger().removeHandler(ring)
        db.close()
    said = "\n".join(each.text for each in ring.tail())
    assert "lost rtsp://h/" in said
    assert "MARK" not in said
