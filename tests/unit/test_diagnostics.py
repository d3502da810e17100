"""The diagnostics bundle: all that helps, and none of the secrets that were planted wherever one may stand."""

from __future__ import annotations

import errno
import io
import json
import logging
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.__main__ import main
from appliance.backup.diagnostics import PART_CHARACTERS_MAX, DiagnosticsSource, stream_bundle
from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError
from appliance.base.telemetry import LogRing
from appliance.cli import backup_and_diagnostics
from appliance.config import load
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, StoredSite
from appliance.settings.secret_scrubber import SecretScrubber
from appliance.settings.settings_service import SettingsService
from appliance.store.health_events import HealthEventStore
from appliance.types import Gap, HealthEvent
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
SECRETS = {
    "in the URL of a camera": "hunter2",
    "in its query": "q4query",
    "in its path": "pathpass99",
    "of a target": "tk_ntfytoken1",
    "of apprise": "aaTelegramBotToken",
    "of the broker at home": "mqttpw-77",
    "of the uplink": "natspw-88",
    "of the dashboard": "0123456789abcdef",
    "in the environment": "from-the-environment",
    "in the environment alone": "nobody-names-me-1",
    "in the secrets file": "from/the secrets+file",
    "in the secrets file alone": "unnamed-secret-2",
    "a default": "default-secret-3",
    "in a comment": "commented-out-4",
    "in an older version": "older-password-5",
    "a short one": "zq7",
}
SITE = """\
site: {name: depot-7}
storage: {dir: DATA}
dashboard: {token: 0123456789abcdef}
cameras:
  gate:
    url: rtsp://viewer:hunter2@192.168.1.20/user=x_password=pathpass99?channel=1&key=q4query
    # password: commented-out-4
  dock: {url: "rtsp://viewer:${DOCK}@192.168.1.21/main"}
  shed: {url: "rtsp://viewer:${SHED}@192.168.1.22/main"}
  hall: {url: "rtsp://v:zq7@192.168.1.23/main"}
uplink: {url: "nats://site:natspw-88@hub.lan:4222"}
mqtt: {url: "mqtt://ha.lan", user: vedette, password: mqttpw-77}
notify:
  phone: {kind: ntfy, url: "https://ntfy.sh", topic: t, token: tk_ntfytoken1}
  chat: {kind: apprise, url: "tgram://123456:aaTelegramBotToken/4711"}
  hook: {kind: webhook, url: "https://h.lan/x", secret: "${HOOK:-default-secret-3}"}
"""


class Planted:
    """A site with a secret in every place, its dashboard and its log."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, data = folder / "site.yaml", folder / "data"
        data.mkdir()
        monkeypatch.setenv("DOCK", "from-the-environment")
        monkeypatch.setenv("OTHER_API_KEY", "nobody-names-me-1")
        self.path.with_suffix(".secrets").write_text("SHED=from/the secrets+file\nUNUSED=unnamed-secret-2\n")
        now = SITE.replace("DATA", str(data))
        self.path.write_text(now.replace("hunter2", "older-password-5"))
        self.clock = ManualClock(T0)
        service = SettingsService(self.path, data, self.clock, lambda config: ())
        service.replace(now, service.status().digest, "anna", "new password is hunter2")
        self.site = Site(data, self.clock, load(self.path))
        self.ring = LogRing(self.clock)
        everything = " ".join(SECRETS.values())
        self.ring.emit(logging.LogRecord("appliance.x", logging.WARNING, "", 0, f"odd: {everything}", (), None))
        self.ring.add_child_line(
            "12:00:00 error ingest: 401 for rtsp://v:from%2Fthe%20secrets%2Bfile@192.168.1.22/main"
        )
        self.site.cameras.write_gap(Gap(camera="gate", t_start=T0, t_end=T0 + 1, reason=f"refused {everything}"))
        event = HealthEvent(camera="gate", id="h1", kind="stalled", t=T0, t_start=T0, reason=f"no {everything}")
        HealthEventStore(self.site.db).put(event)
        probes = CoreProbes(health=lambda: self.site.health, log=self.ring.tail)
        stored = StoredSite(self.site.db, self.site.meter, data, self.clock)
        self.http = TestClient(
            create_app(stored, self.site.config.for_dashboard(), probes=probes, settings=service),
            base_url="http://127.0.0.1:8080", headers={"Authorization": "Bearer 0123456789abcdef"},
        )  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    made = Planted(tmp_path, monkeypatch)
    yield made
    made.site.close()


def unpacked(data: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        assert bundle.testzip() is None
        return {each: bundle.read(each).decode() for each in bundle.namelist()}


def assert_without_secrets(files: dict[str, str]) -> None:
    for where, secret in SECRETS.items():
        for name, text in files.items():
            assert secret not in text, f"the secret {where} stands in {name}"
            assert json.dumps(secret)[1:-1] not in text, f"the secret {where} stands in {name}"


def test_the_bundle_of_the_dashboard_has_everything_but_secrets(planted: Planted) -> None:
    answer = planted.http.get("/api/v1/system/diagnostics.zip")
    assert answer.headers["content-type"] == "application/zip"
    files = unpacked(answer.content)
    assert set(files) == {
        "README.txt", "site.yaml", "site-versions.json", "versions.json", "system.json", "log.txt",
        "health-events.json", "gaps.json", "metrics.txt", "schema.json",
    }  # fmt: skip
    assert_without_secrets(files)
    assert "warning  x: odd: ***" in files["log.txt"]
    assert "192.168.1.20" in files["site.yaml"], "the host helps, and is no secret"
    assert "token: ***" in files["site.yaml"]
    assert json.loads(files["site-versions.json"])[0]["why"] == "new password is ***"
    assert json.loads(files["gaps.json"])[0]["camera"] == "gate"
    assert json.loads(files["health-events.json"])[0]["kind"] == "stalled"
    assert json.loads(files["schema.json"])["version"] >= 14
    assert json.loads(files["system.json"])["processes"]
    assert "vedette_alerts 0.0" in files["metrics.txt"]


def test_the_command_makes_one_beside_the_running_appliance(planted: Planted, tmp_path: Path) -> None:
    log = tmp_path / "journal.txt"
    log.write_text(f"line of the journal: {' '.join(SECRETS.values())}\n")
    out = tmp_path / "d.zip"
    words = ["diagnostics", "--config", str(planted.path), "--out", str(out), "--log", str(log)]
    assert main(words) == 0
    files = unpacked(out.read_bytes())
    assert_without_secrets(files)
    assert "line of the journal: ***" in files["log.txt"]
    assert json.loads(files["machine.json"])["disk"]["free"] > 0
    assert json.loads(files["gaps.json"])
    assert main(words) == 2, "it writes over nothing"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_half_of_one_is_not_left(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def broken(source: DiagnosticsSource) -> Iterator[bytes]:
        yield b"PK"
        raise error

    monkeypatch.setattr(backup_and_diagnostics, "stream_bundle", broken)
    out = tmp_path / "d.zip"
    assert main(["diagnostics", "--config", str(planted.path), "--out", str(out)]) in (2, 130)
    assert not out.exists()


def test_a_broken_site_file_is_a_reason_to_make_one(planted: Planted, tmp_path: Path) -> None:
    planted.path.write_text(planted.path.read_text() + "\nodd_key: 1\ncameras: [\n")
    out = tmp_path / "d.zip"
    words = ["diagnostics", "--config", str(planted.path), "--out", str(out)]
    assert main(words) == 2, "nobody knows where the storage is"
    assert main([*words, "--storage", str(planted.site.root)]) == 0
    files = unpacked(out.read_bytes())
    assert "odd_key" in files["site.yaml"]
    assert_without_secrets(files)
    planted.path.write_bytes(b"\xff\xfe")
    words[-1] = str(tmp_path / "e.zip")
    assert main([*words, "--storage", str(planted.site.root)]) == 0
    assert "not a text file" in unpacked((tmp_path / "e.zip").read_bytes())["site.yaml"]


def test_a_part_is_bounded_and_one_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    def broken() -> None:
        raise StoreError("the file is damaged")

    @contextmanager
    def read() -> Iterator[None]:
        raise StoreError("there is none")
        yield

    source = DiagnosticsSource(
        None, SecretScrubber(["geheim"]), read, dict, live={"log.txt": lambda: "x" * 9_000_000, "odd.json": broken}
    )  # fmt: skip
    pieces = list(stream_bundle(source))
    assert len(pieces) > 5, "it is sent as it is made"
    files = unpacked(b"".join(pieces))
    assert PART_CHARACTERS_MAX < len(files["log.txt"]) < PART_CHARACTERS_MAX + 100
    assert "damaged" in files["odd.json.missing.txt"]
    assert "there is none" in files["gaps.json.missing.txt"]


def test_a_short_secret_goes_only_where_it_stands_alone() -> None:
    scrubber = SecretScrubber(["main", "a"])
    assert scrubber.scrub("domain main a maintain") == "domain *** a maintain"
    assert scrubber.scrub_data({"main": ["x main", 1, None]}) == {"***": ["x ***", 1, None]}
