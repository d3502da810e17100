"""An upgrade keeps what it may have to give back, and gives back no more than it must."""

from __future__ import annotations

import contextlib
import http.server
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import upgrade
from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigError, MissingDependency, StoreError
from appliance.store.database import Database, StoreInUse
from appliance.store.database_copy import SCHEMA_KNOWN

SITE = """\
site: {{name: depot}}
storage: {{dir: {folder}}}
dashboard: {{port: {port}, token: "${{TOKEN}}"}}
cameras: {{}}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    (tmp_path / "data").mkdir()
    path.write_text(SITE.format(folder=tmp_path / "data", port=1))
    Database(tmp_path / "data" / "vedette.db", ManualClock()).close()
    return path


def notes(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM counter WHERE name LIKE 'note%' ORDER BY name")]


def write(database: Path, note: str, schema: int = SCHEMA_KNOWN) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("INSERT INTO counter (name, value) VALUES (?, 1)", (note,))
        connection.execute(f"PRAGMA user_version = {schema}")
        connection.commit()


def test_a_database_that_a_newer_version_migrated_goes_aside_and_the_one_of_before_comes_back(site: Path) -> None:
    database = site.parent / "data" / "vedette.db"
    write(database, "note-before")
    kept = upgrade.keep(site, "2.0")
    assert kept is not None
    write(database, "note-after", SCHEMA_KNOWN + 1)
    with pytest.raises(StoreError, match="newer"):
        Database(database, ManualClock())
    (done,) = upgrade.put_back(site, kept)
    assert "database is that of before" in done
    assert notes(database) == ["note-before"]
    assert notes(database.parent / "after-upgrade-2.0" / "vedette.db") == ["note-after", "note-before"]
    Database(database, ManualClock()).close()
    assert upgrade.put_back(site, kept) == [], "once more, after a kill, changes nothing"


def test_a_kill_between_the_two_renames_is_made_good(site: Path) -> None:
    database = site.parent / "data" / "vedette.db"
    write(database, "note-before")
    kept = upgrade.keep(site, "2.0")
    assert kept is not None
    database.rename(database.with_name("gone-aside"))
    assert upgrade.put_back(site, kept)
    assert notes(database) == ["note-before"]


def test_a_database_that_broke_goes_aside_as_well(site: Path) -> None:
    database = site.parent / "data" / "vedette.db"
    write(database, "note-before")
    kept = upgrade.keep(site, "2.0")
    assert kept is not None
    database.write_bytes(b"no database at all" * 500)
    assert upgrade.put_back(site, kept)
    assert notes(database) == ["note-before"]


def test_a_database_that_the_older_version_can_read_stays_with_all_that_happened_since(site: Path) -> None:
    database = site.parent / "data" / "vedette.db"
    kept = upgrade.keep(site, "2.0")
    assert kept is not None
    write(database, "note-after")
    assert upgrade.put_back(site, kept) == []
    assert notes(database) == ["note-after"]


def test_a_site_file_with_keys_of_the_newer_version_goes_aside(site: Path) -> None:
    before = site.read_text()
    kept = upgrade.keep(site, "2.0")
    assert kept is not None
    site.write_text(before + "invented: {by: 2.0}\n")
    (done,) = upgrade.put_back(site, kept)
    assert "site file is that of before" in done
    assert site.read_text() == before
    assert "invented" in (kept.parent / "after-upgrade-2.0" / "site.yaml").read_text()
    site.write_text(before.replace("depot", "depot-8"))
    assert upgrade.put_back(site, kept) == [], "a person's change that both understand stays"
    assert "depot-8" in site.read_text()


def test_a_site_file_goes_aside_though_an_address_stands_in_its_secrets(site: Path) -> None:
    """As the dashboard writes a target of apprise."""
    chat = "notify: {chat: {kind: apprise, url: '${NOTIFY_CHAT_URL}'}}\n"
    site.write_text(site.read_text() + chat)
    site.with_suffix(".secrets").write_text("NOTIFY_CHAT_URL=discord://1/2\n")
    before = site.read_text()
    kept = upgrade.keep(site, "2.0")
    assert kept is not None
    site.write_text(before + "invented: {by: 2.0}\n")
    site.with_suffix(".secrets").write_text("broken\n")
    assert upgrade.put_back(site, kept) == [], "nobody knows whether the older one would be taken"
    site.with_suffix(".secrets").write_text("NOTIFY_CHAT_URL=discord://1/2\n")
    assert len(upgrade.put_back(site, kept)) == 1
    assert site.read_text() == before


def test_nothing_is_kept_under_a_running_appliance_and_two_are_kept_of_many(site: Path) -> None:
    running = Database(site.parent / "data" / "vedette.db", ManualClock())
    with pytest.raises(StoreInUse):
        upgrade.keep(site, "2.0")
    running.close()
    for tag in ("1.1", "1.2", "1.3"):
        upgrade.keep(site, tag)
    assert sorted(path.name for path in (site.parent / "data").glob("before-*")) == [
        "before-upgrade-1.2",
        "before-upgrade-1.3",
    ]


def test_without_a_database_there_is_nothing_to_keep_and_a_folder_that_nobody_can_tell_is_refused(site: Path) -> None:
    (site.parent / "data" / "vedette.db").unlink()
    assert upgrade.keep(site, "2.0") is None
    site.write_text("site: {name: depot}\nstorage: {dir: '/srv/${PLACE}'}\ncameras: {}\n")
    with pytest.raises(ConfigError, match=r"storage\.dir"):
        upgrade.keep(site, "2.0")


@contextlib.contextmanager
def answering(statuses: dict[str, int]) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[self.path])
            self.end_headers()
            self.wfile.write(json.dumps({"status": "x"}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_it_waits_until_the_dashboard_says_ready(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statuses = {"/readyz": 503, "/healthz": 200}
    clock = ManualClock()
    with answering(statuses) as port:
        site.write_text(SITE.format(folder=site.parent, port=port))
        assert upgrade.wait_until(site, "ready", 3, clock) == "alive"
        assert upgrade.wait_until(site, "alive", 3, clock) == "alive"
        assert upgrade.main(["state", str(site), "--until", "ready"]) == 1
        statuses["/readyz"] = 200
        assert upgrade.main(["state", str(site), "--wait", "5"]) == 0
        assert capsys.readouterr().out == "alive\nready\n"
        statuses.update({"/readyz": 503, "/healthz": 503})
        assert upgrade.state(site) == "silent"
    assert upgrade.state(site) == "silent"
    site.write_text("site: {name: depot}\ndashboard: {enabled: false}\ncameras: {}\n")
    with pytest.raises(ConfigError, match="nobody can ask"):
        upgrade.state(site)


def test_the_files_of_a_version_are_its_own_or_the_repositorys(tmp_path: Path) -> None:
    assert (upgrade.files_folder() / "systemd" / "vedette.service").is_file()
    own = tmp_path / "appliance" / "deploy" / "systemd"
    own.mkdir(parents=True)
    with pytest.raises(MissingDependency, match="install the wheel again"):
        upgrade.files_folder(tmp_path / "appliance")
    (own / "vedette.service").touch()
    assert upgrade.files_folder(tmp_path / "appliance") == own.parent
